"""Read WordNet 3.0's database files: words, their first sense, its gloss, its kind, how often it was tagged.

Unusual: only the first sense of a word and part of speech counts; a tiny model has no room for more.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PARTS = {"noun": "1", "verb": "2", "adj": "3", "adv": "4"}
_SENSE_TYPES = {"1": "noun", "2": "verb", "3": "adj", "4": "adv", "5": "adj"}
_HYPERNYM = "@"


@dataclass(frozen=True, kw_only=True)
class Synset:
    """One meaning: the words that share it, its gloss, and where it hangs."""

    lexicographer_file: int
    words: tuple[str, ...]
    definition: str
    examples: tuple[str, ...]
    hypernyms: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A word with its first meaning; ``count`` is how often that meaning was tagged in running text."""

    word: str
    part: str
    synset: Synset
    count: int


class WordNet:
    """The whole database, read once (about two seconds)."""

    def __init__(self, folder: Path) -> None:
        self.synsets = {part: dict(_read_data(folder / f"data.{part}")) for part in PARTS}
        self._counts = _read_counts(folder / "cntlist.rev")
        self._index = {part: dict(_read_index(folder / f"index.{part}")) for part in PARTS}

    def entries(self) -> Iterator[Entry]:
        """Yield each word and part of speech, with its first sense."""
        for part, index in self._index.items():
            for word, offset in index.items():
                count = self._counts[word, part]
                yield Entry(word=word.replace("_", " "), part=part, synset=self.synsets[part][offset], count=count)

    def hypernym(self, entry: Entry) -> str | None:
        """Return the first word of the first more general meaning."""
        above = entry.synset.hypernyms
        return self.synsets[entry.part][above[0]].words[0] if above else None


def _read_data(file: Path) -> Iterator[tuple[int, Synset]]:
    for line in file.read_text(encoding="latin-1").splitlines():
        if line.startswith("  "):
            continue  # the licence, indented by two blanks
        data, _, gloss = line.partition(" | ")
        fields = data.split()
        num_words = int(fields[3], 16)
        words = tuple(re.sub(r"\(\w+\)$", "", word).replace("_", " ") for word in fields[4 : 4 + 2 * num_words : 2])
        pointers = fields[5 + 2 * num_words :]
        above = tuple(int(pointers[i + 1]) for i in range(0, len(pointers) - 3, 4) if pointers[i] == _HYPERNYM)
        definition, examples = _split_gloss(gloss)
        yield (
            int(fields[0]),
            Synset(
                lexicographer_file=int(fields[1]),
                words=words,
                definition=definition,
                examples=examples,
                hypernyms=above,
            ),
        )


def _split_gloss(gloss: str) -> tuple[str, tuple[str, ...]]:
    examples = tuple(re.findall(r'"([^"]+)"', gloss))
    definition = re.split(r'[;:,]?\s*"', gloss, maxsplit=1)[0]
    return " ".join(definition.split()).strip(" ;:"), examples


def _read_index(file: Path) -> Iterator[tuple[str, int]]:
    for line in file.read_text(encoding="latin-1").splitlines():
        if not line.startswith("  "):
            fields = line.split()
            yield fields[0], int(fields[6 + int(fields[3])])


def _read_counts(file: Path) -> Counter[tuple[str, str]]:
    """Count the taggings of the first sense; adjectives and their satellites are one part of speech."""
    counts: Counter[tuple[str, str]] = Counter()
    for line in file.read_text(encoding="latin-1").splitlines():
        key, number, count = line.split()
        word, _, sense = key.partition("%")
        if number == "1":
            counts[word, _SENSE_TYPES[sense[0]]] += int(count)
    return counts

"""Plain text from the sources, as JSON lines: dictionary entries, the Bible by chapters, the plays by pages.

Unusual: entries of the taught words come several times, each time worded and grouped differently; a fact seen in one
wording only is not found again in another.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from random import Random

from openk3.models.nano.recipe.dialogues.definitions import Word
from openk3.models.nano.recipe.dialogues.turn import capital
from openk3.models.nano.recipe.sources import Sources
from openk3.models.nano.recipe.wordnet import WordNet

_ENTRIES_PER_DOCUMENT = 8
_LEXICON_ROUNDS = 12
_PAGE_CHARACTERS = 1400
_PARTS = {"noun": "noun", "verb": "verb", "adj": "adjective", "adv": "adverb"}


def write_texts(sources: Sources, wordnet: WordNet, words: Sequence[Word], folder: Path, seed: int) -> dict[str, int]:
    """Write ``lexicon``, ``wordnet``, ``kjv`` and ``shakespeare`` as JSON lines; return their numbers of characters."""
    texts = {
        "lexicon": lexicon(words, Random(seed)),
        "wordnet": glosses(wordnet, Random(seed)),
        "kjv": chapters(sources.bible),
        "shakespeare": pages(sources.shakespeare),
    }
    return {name: write_lines(folder / f"{name}.jsonl", documents) for name, documents in texts.items()}


def write_lines(file: Path, documents: Iterable[str]) -> int:
    """Write one ``{"text": …}`` per line and return the number of characters."""
    total = 0
    with file.open("w", encoding="utf-8") as lines:
        for text in documents:
            lines.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
            total += len(text)
    return total


def lexicon(words: Sequence[Word], rng: Random) -> Iterator[str]:
    """Yield groups of definitions of the taught words."""
    for _ in range(_LEXICON_ROUNDS):
        order = rng.sample(words, len(words))
        yield from _grouped([_lexicon_entry(word, rng) for word in order])


def _lexicon_entry(word: Word, rng: Random) -> str:
    part = _PARTS[word.part]
    forms = [
        word.sentence,
        f"{word.word} ({part}): {word.definition}.",
        f"{capital(word.definition)}: {word.word}.",
        f"The {part} {word.word} means: {word.definition}.",
    ]
    if word.hypernym:
        forms.append(f"{word.sentence} {capital(word.word)} is a kind of {word.hypernym}.")
    return rng.choice(forms)


def glosses(wordnet: WordNet, rng: Random) -> Iterator[str]:
    """Yield groups of entries that people have used, with their example sentences."""
    entries = [entry for entry in wordnet.entries() if entry.count or entry.synset.examples]
    rng.shuffle(entries)
    texts = []
    for entry in entries:
        examples = "".join(f" {capital(example)}." for example in entry.synset.examples[:2])
        texts.append(f"{entry.word} ({_PARTS[entry.part]}): {entry.synset.definition}.{examples}")
    yield from _grouped(texts)


def _grouped(texts: Sequence[str]) -> Iterator[str]:
    for start in range(0, len(texts), _ENTRIES_PER_DOCUMENT):
        yield "\n".join(texts[start : start + _ENTRIES_PER_DOCUMENT])


def chapters(bible: Path) -> Iterator[str]:
    """Yield the Bible by chapters, without verse numbers."""
    chapter, verses = "", list[str]()
    for line in bible.read_text(encoding="latin-1").splitlines():
        reference, _, verse = line.partition(" ")
        current = reference.partition(":")[0]
        if current != chapter and verses:
            yield " ".join(verses)
            verses = []
        chapter = current
        verses.append(" ".join(verse.split()))
    yield " ".join(verses)


def pages(folder: Path) -> Iterator[str]:
    """Yield the plays and poems in pages that end at a paragraph."""
    for file in sorted(folder.glob("*_gut.txt")):
        text = re.sub(r"[ \t]+", " ", file.read_text(encoding="latin-1").replace("\r", ""))
        page, size = list[str](), 0
        for paragraph in (part.strip() for part in re.split(r"\n\s*\n", text)):
            if not paragraph or "gutenberg" in paragraph.lower():
                continue
            page.append(paragraph)
            size += len(paragraph)
            if size > _PAGE_CHARACTERS:
                yield "\n\n".join(page)
                page, size = [], 0
        if page:
            yield "\n\n".join(page)

"""Everything before training: texts, dialogues, vocabulary, the model's configuration, and the run's settings.

Unusual: the folder it fills is all that ``openk3 train pretrain`` needs; tokenising happens there, once.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

from openk3.chat.render import render_dialogue
from openk3.model.published import config_to_dict
from openk3.models.nano.recipe.corpus import write_texts
from openk3.models.nano.recipe.dialogues.compose import Composer
from openk3.models.nano.recipe.shape import NANO, NUM_BASE_TOKENS
from openk3.models.nano.recipe.sources import digest, fetch
from openk3.models.nano.recipe.vocabulary import train_vocabulary
from openk3.models.nano.recipe.wordnet import WordNet
from openk3.tokenizer.bpe import Tokenizer
from openk3.tokenizer.special import SpecialTokens
from openk3.tokenizer.vocabulary import write_vocabulary
from openk3.train.data.sources import message_from_dict

SEED = 1
NUM_DIALOGUES = 60_000
RUN_FILE = "nano.toml"
# Plain texts are a fifth of what the vocabulary is learned from; most of what the model writes is dialogue.
_VOCABULARY_CHARACTERS = {"lexicon": 600_000, "wordnet": 1_200_000, "kjv": 600_000, "shakespeare": 600_000}
_VOCABULARY_DIALOGUES = 12_000


def prepare(folder: Path) -> dict[str, Any]:
    """Fill ``folder``; return what was made, for the card. Raises `TrainingError` if a source cannot be fetched."""
    sources = fetch(folder / "sources")
    texts = folder / "texts"
    texts.mkdir(parents=True, exist_ok=True)
    wordnet = WordNet(sources.wordnet)
    composer = Composer(wordnet, SEED)
    sizes = write_texts(sources, wordnet, composer.words, texts, SEED)
    sizes["dialogues"] = _write_dialogues(composer, texts / "dialogues.jsonl")
    _write_vocabulary(texts, folder / "vocabulary")
    (folder / "config.json").write_text(json.dumps(config_to_dict(NANO), indent=2) + "\n", encoding="utf-8")
    with resources.as_file(resources.files(__package__) / RUN_FILE) as run_file:
        shutil.copyfile(run_file, folder / RUN_FILE)
    made = {
        "seed": SEED,
        "dialogues": NUM_DIALOGUES,
        "words": len(composer.words),
        "characters": sizes,
        "sha256": digest(sources),
    }
    (folder / "made.json").write_text(json.dumps(made, indent=2) + "\n", encoding="utf-8")
    return made


def _write_dialogues(composer: Composer, file: Path) -> int:
    size = 0
    with file.open("w", encoding="utf-8") as lines:
        for dialogue in composer.training(NUM_DIALOGUES):
            line = json.dumps(dialogue.as_dict(), ensure_ascii=False)
            lines.write(line + "\n")
            size += len(line)
    return size


def _write_vocabulary(texts: Path, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    write_vocabulary(folder, train_vocabulary(_samples(texts)), SpecialTokens.block(NUM_BASE_TOKENS))


def _samples(texts: Path) -> Iterator[str]:
    """Yield what the vocabulary is learned from: parts of the texts, and dialogues as they will be tokenised."""
    for name, characters in _VOCABULARY_CHARACTERS.items():
        with (texts / f"{name}.jsonl").open(encoding="utf-8") as lines:
            for line in lines:
                text = json.loads(line)["text"]
                yield text
                characters -= len(text)
                if characters < 0:
                    break
    yield from _dialogue_samples(texts / "dialogues.jsonl")


def _dialogue_samples(file: Path) -> Iterator[str]:
    """Yield the text between the control tokens, rendered over bare bytes, since there are no merges yet."""
    tokenizer = Tokenizer([bytes([byte]) for byte in range(256)], SpecialTokens.block(256))
    with file.open(encoding="utf-8") as lines:
        for _, line in zip(range(_VOCABULARY_DIALOGUES), lines, strict=False):
            raw = json.loads(line)
            messages = [message_from_dict(message) for message in raw["messages"]]
            ids, _ = render_dialogue(
                messages,
                tokenizer=tokenizer,
                tools=raw["tools"],
                thinking=raw["effort"] is not None,
                effort=raw["effort"],
            )
            yield from _runs_of_text(ids)


def _runs_of_text(ids: list[int]) -> Iterator[str]:
    run = bytearray()
    for token in (*ids, 256):
        if token < 256:
            run.append(token)
        elif run:
            yield run.decode("utf-8")
            run.clear()

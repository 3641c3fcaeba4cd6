"""The recipe's parts that need no download: answers that are right, questions that stay apart, and the vocabulary."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from operator import add, floordiv, mul, sub
from pathlib import Path
from random import Random

import pytest
import tiktoken

from openk3.checkpoint.index import INDEX_FILE
from openk3.errors import TrainingError
from openk3.models.nano.recipe import sources
from openk3.models.nano.recipe.dialogues import facts, lists, numbers, small_talk, stories, tools
from openk3.models.nano.recipe.dialogues.compose import Composer
from openk3.models.nano.recipe.dialogues.turn import EFFORTS, Task, article
from openk3.models.nano.recipe.export import export
from openk3.models.nano.recipe.vocabulary import train_vocabulary
from openk3.models.nano.recipe.wordnet import WordNet
from openk3.tokenizer.split import SPLIT_PATTERN

SOURCES = ("wordnet", "kjv", "shakespeare")
WORDS = "stone river candle apple window garden letter music paper summer winter basket".split()
TASKS = [*numbers.TASKS, *facts.TASKS, *lists.tasks(WORDS), *small_talk.TASKS, *stories.TASKS, *tools.TASKS]


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.__name__)
def test_every_task_thinks_longer_at_higher_effort(task: Task) -> None:
    rng = Random(0)
    for _ in range(50):
        turn = task(rng)
        low, high, most = (len(turn.thinking.at(effort)) for effort in EFFORTS)
        assert low <= high < most
        assert turn.thinking.low
        assert turn.answer
        assert turn.question


def test_arithmetic_is_right() -> None:
    rng = Random(1)
    for task in (numbers.addition, numbers.subtraction, numbers.multiplication, numbers.division):
        for _ in range(300):
            turn = task(rng)
            left, sign, right, result = re.fullmatch(r"(\d+) (\S) (\d+) = (\d+)\.", turn.answer).groups()
            a, b = int(left), int(right)
            assert int(result) == {"+": add, "-": sub, "x": mul, "/": floordiv}[sign](a, b)
            # each step that the thinking writes down holds too
            for equation, value in re.findall(r"(\d+(?: [-+x] \d+)+) = (\d+)", turn.thinking.at("max")):
                assert eval(equation.replace("x", "*")) == int(value)


def test_lists_are_handled_right() -> None:
    rng = Random(2)
    made = {task.__name__: task for task in lists.tasks(WORDS)}
    for _ in range(100):
        turn = made["reverse"](rng)
        assert turn.answer.split() == turn.key.split()[::-1]
        turn = made["alphabet"](rng)
        assert turn.answer.rstrip(".").split(", ") == sorted(turn.key.split(", "))
        turn = numbers.sort_numbers(rng)
        found = [int(n) for n in turn.answer.rstrip(".").split(", ")]
        assert found == sorted(found, reverse=turn.key.startswith("True"))


def test_articles() -> None:
    assert [article(word) for word in ("apple", "hour", "unit", "stone")] == [
        "an apple",
        "an hour",
        "a unit",
        "a stone",
    ]


WORDNET_LINES = {
    "noun": ('00000001 06 n 01 {0} 0 000 | a thing made of {0}s; "he had a {0}"', "{0} n 1 0 1 1 00000001"),
    "verb": ('00000001 30 v 01 {0} 0 000 00 | to do it with {0}s; "they {0}"', "{0} v 1 0 1 1 00000001"),
}


@pytest.fixture
def wordnet(tmp_path: Path) -> WordNet:
    """A database of a few words, each meaning in a line of its own."""
    made = {"noun": WORDS, "verb": ["carry", "follow"], "adj": [], "adv": []}
    for part, words in made.items():
        data, index = ["  1 licence"], ["  1 licence"]
        for number, word in enumerate(words, 1):
            for lines, line in zip((data, index), WORDNET_LINES[part], strict=True):
                lines.append(line.format(word).replace("00000001", f"{number:08}"))
        (tmp_path / f"data.{part}").write_text("\n".join(data) + "\n")
        (tmp_path / f"index.{part}").write_text("\n".join(index) + "\n")
    counts = "".join(f"{word}%1:06:00:: 1 {9 if word in WORDS[:8] else 0}\n" for word in WORDS)
    (tmp_path / "cntlist.rev").write_text(counts)
    return WordNet(tmp_path)


def test_wordnet_is_read(wordnet: WordNet) -> None:
    entry = next(entry for entry in wordnet.entries() if entry.word == "river")
    assert (entry.part, entry.count, entry.synset.definition) == ("noun", 9, "a thing made of rivers")
    assert entry.synset.examples == ("he had a river",)


def test_training_never_asks_what_the_evaluation_asks(wordnet: WordNet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openk3.models.nano.recipe.dialogues.definitions.choose", lambda _: (_words(), ["septum"]))
    # a story has no one right answer, and a name may be told in another conversation
    asked = {
        (turn.question, str(turn.tools))
        for turn, _ in Composer(wordnet, 7).evaluation(3, "low")
        if turn.task not in ("story", "greeting")
    }
    trained = list(Composer(wordnet, 1).training(800))
    said = {
        (message.content, str(dialogue.tools))
        for dialogue in trained
        for message in dialogue.messages
        if message.role == "user"
    }
    assert len(asked) > 60
    assert asked & said == set()
    assert {dialogue.effort for dialogue in trained} == {"low", "high", "max", None}
    assert trained == list(Composer(wordnet, 1).training(800)), "the same seed gives the same dialogues"


def _words() -> list[object]:
    from openk3.models.nano.recipe.dialogues.definitions import Word

    return [
        Word(word=word, part="noun", definition="a thing", hypernym="thing", sentence=f"A {word} is a thing.")
        for word in WORDS
    ]


def test_vocabulary_keeps_digits_apart_and_loses_nothing() -> None:
    text = "the stone and the river and the 1234 stones, the café; "
    ranks = train_vocabulary([text] * 50, size=276)
    assert list(ranks.values()) == list(range(276))
    assert not any(re.fullmatch(rb"\s*\d\d+", token) for token in ranks)
    encoding = tiktoken.Encoding("test", pat_str=SPLIT_PATTERN, mergeable_ranks=ranks, special_tokens={})
    ids = encoding.encode(text)
    assert encoding.decode(ids) == text
    assert len(ids) < len(text.encode()) / 2


def test_a_failed_export_leaves_the_bundled_model_alone(tmp_path: Path) -> None:
    bundled, build = tmp_path / "nano", tmp_path / "build"
    bundled.mkdir()
    (bundled / INDEX_FILE).write_text("kept")
    build.mkdir()
    with pytest.raises(TrainingError, match="no such file"):
        export(build, bundled)
    (build / "run").mkdir()
    for name, text in {
        "made.json": json.dumps({"words": 1, "dialogues": 1, "seed": 1, "sha256": dict.fromkeys(SOURCES, "0")}),
        "results.json": json.dumps({"right": {}, "overall": {}, "seed": 1, "thinking_tokens": {}}),
        "run/metrics.jsonl": '{"loss": 1.0, "minutes": 1.0, "tokens": 1, "step": 1}\n{"held_out": {"kjv": 1.0}}\n',
    }.items():
        (build / name).write_text(text)
    with pytest.raises(TrainingError, match="no finished model"):
        export(build, bundled)
    assert (bundled / INDEX_FILE).read_text() == "kept"


def test_sources_are_fetched_into_a_folder_named_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The programs run inside the folder, so a relative path to it would be looked for twice."""
    commands: list[Sequence[str]] = []

    def run(command: Sequence[str], folder: Path, hint: str) -> bytes:
        commands.append(command)
        if command[0] == "apt-get":
            (folder / f"{command[-1]}_1_all.deb").touch()
        elif command[0] == "dpkg-deb":
            assert Path(command[-2]).is_absolute() and Path(command[-2]).is_file()
            Path(command[-1]).mkdir()
        return b"In the beginning"

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sources, "_run", run)
    monkeypatch.setattr(sources, "_fetch_shakespeare", lambda folder: None)
    assert sources.fetch(Path("build/sources")).bible.read_bytes() == b"In the beginning"
    assert len(commands) == 2 * len(sources.DEBIAN_PACKAGES) + 1

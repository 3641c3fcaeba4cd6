"""Drafts from the text itself: which continuation is chosen, what it costs, and that answers stay the plain ones."""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence

import pytest

from openk3.engine.config import EngineConfig
from openk3.engine.speculative.ngram import _LONGEST, _PLACES, _PORTION, NgramDrafter
from openk3.protocol.request import Request
from openk3.protocol.sampling import SamplingParams
from tests.engine.harness import Harness, build, ids, plain
from tests.engine.speculative.cases import check_answers, writing


def guess(tokens: Sequence[int], depth: int = 4) -> list[int]:
    return NgramDrafter(depth).propose([writing(tokens)], [depth])[0]


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([1, 2, 3, 4, 5, 6, 9, 1, 2], [3, 4, 5, 6]),
        ([1, 2, 3, 0, 1, 2, 4, 0, 1, 2], [4, 0, 1, 2]),  # equally long: the latest
        ([8, 1, 2, 3, 0, 1, 2, 4, 8, 1, 2], [3, 0, 1, 2]),  # the longest, though not the latest
        ([1, 2, 1, 2], [1, 2, 1, 2]),  # goes round
        ([5, 5, 5], [5, 5, 5, 5]),
        ([1, 2, 3, 4, 2], []),  # one equal token is none
        ([1, 2], []),
        ([1], []),
    ],
)
def test_what_followed_the_longest_and_latest_match(tokens: list[int], expected: list[int]) -> None:
    assert guess(tokens) == expected
    assert guess(tokens, 2) == expected[:2]
    assert guess(tokens, 0) == []


def searched(tokens: Sequence[int], depth: int) -> list[int]:
    """Search all of the text, without an index."""
    places = [i for i in range(1, len(tokens) - 1) if tokens[i - 1 : i + 1] == tokens[-2:]][-_PLACES:]

    def length(place: int) -> int:
        return next((n for n in range(_LONGEST, 2, -1) if n <= place + 1 and _ends(tokens, place, n)), 2)

    if not places:
        return []
    best = max(places, key=lambda place: (length(place), place))
    text = list(tokens)
    for _ in range(depth):
        text.append(text[best + 1 + len(text) - len(tokens)])
    return text[len(tokens) :]


def _ends(tokens: Sequence[int], place: int, count: int) -> bool:
    return tokens[place + 1 - count : place + 1] == tokens[len(tokens) - count :]


@pytest.mark.parametrize("seed", range(30))
def test_the_index_finds_what_a_search_finds_however_the_text_grows(seed: int) -> None:
    rng = random.Random(seed)
    words = rng.choice([2, 3, 10])
    drafter, sequence = NgramDrafter(14), writing([rng.randrange(words)])
    for _ in range(60):
        depth = rng.choice([0, 1, 5, 14])
        assert drafter.propose([sequence], [depth]) == [searched(sequence.tokens, depth)]
        for _ in range(rng.choice([0, 1, 1, 4])):
            sequence.append(rng.randrange(words))


@pytest.mark.parametrize("preempts", [False, True])
def test_answers_are_the_plain_ones(preempts: bool) -> None:
    drafter = NgramDrafter(4)
    check_answers(build("mini4"), drafter, preempts=preempts)
    assert not drafter._indices


def test_a_repeating_answer_is_drafted() -> None:
    model = build("mini4")
    params = SamplingParams(temperature=0.0, max_tokens=60, logit_bias={9: 1000.0})
    request = Request(prompt_ids=ids(20, 1), params=params)
    harness = Harness(model, EngineConfig(speculate_depth=4), drafter=NgramDrafter(4))
    assert harness.answer(request) == plain(model, request).outputs
    metrics = harness.core.metrics
    assert metrics.accepted == metrics.drafted > 40
    assert metrics.steps < 20


def test_a_long_text_is_indexed_in_portions() -> None:
    drafter, tokens = NgramDrafter(4), [*range(3, 3 + _PORTION), *range(3, 3 + _PORTION)]
    sequence = writing(tokens)
    index_sizes = []
    for _ in range(3):
        assert drafter.propose([sequence], [2]) == [[3, 4]] or not index_sizes
        index_sizes.append(len(drafter._indices[sequence]._before))
    assert index_sizes == [1 + _PORTION, 2 * _PORTION - 1, 2 * _PORTION - 1]


@pytest.mark.parametrize("length", [1, 3, 100, 5462, 50_000])
def test_memory_is_within_the_bounds(length: int) -> None:
    rng = random.Random(1)
    drafter, sequence = NgramDrafter(4), writing([rng.randrange(1 << 20) for _ in range(length)])
    for _ in range(10):
        drafter.propose([sequence], [1])
    index = drafter._indices[sequence]
    used = sys.getsizeof(index) + sys.getsizeof(index.__dict__)
    used += sys.getsizeof(index._latest) * 3 // 2 + sys.getsizeof(index._before)  # the table before it doubled
    used += sum(sys.getsizeof(number) for entry in index._latest.items() for number in entry)
    assert used <= drafter.bytes_per_sequence + length * drafter.bytes_per_token


def test_a_released_sequence_begins_anew() -> None:
    drafter, sequence = NgramDrafter(4), writing([1, 2, 3, 1, 2])
    assert drafter.propose([sequence], [1]) == [[3]]
    drafter.release(sequence)
    drafter.release(sequence)  # one that it does not know is no error
    assert not drafter._indices
    assert drafter.propose([sequence], [1]) == [[3]]

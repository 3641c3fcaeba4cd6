"""Faults that users met with grammars, reproduced on a tiny model with the real matcher; numbers as in the survey.

Unusual: the vocabulary is made up, but has what matters: texts of several letters that overlap, and control tokens.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from functools import cache

import pytest

from openk3.engine.config import EngineConfig
from openk3.engine.grammar import GrammarCompiler
from openk3.protocol.request import Grammar, Request
from openk3.protocol.sampling import SamplingParams, TokenOutput
from tests.engine.harness import Harness, Oracle, build, ids, plain

END, THINK_END = 242, 250
_PAIRS = [first + second for first in (b"ab", b"1", b"2]", b"[", b",", b" ") for second in (b"a", b"1", b"[3", b",4")]
TEXTS: list[bytes | None] = [
    *(bytes([byte]) for byte in range(128)),
    *(_PAIRS[i] if i < len(_PAIRS) else bytes([128 + i]) for i in range(112)),
    *[None] * 16,
]
COMPILER = GrammarCompiler(TEXTS, [END], 256)

REASONED = Grammar(f"start: /[a-z ]{{10,25}}/ <[{THINK_END}]> /\\[[0-9]{{1,5}}(,[0-9]{{1,5}}){{0,3}}\\]/")
SCHEMA = {
    "anyOf": [
        {"type": "object", "properties": {"a": {"enum": [1, 23]}}, "required": ["a"], "additionalProperties": False},
        {"type": "array", "items": {"enum": [1, 4]}, "minItems": 1, "maxItems": 4},
    ],
    "x-guidance": {"whitespace_flexible": False},
}
EITHER = Grammar(f"start: %json {json.dumps(SCHEMA)}")


def ask(grammar: Grammar, number: int, **params: object) -> Request:
    settings = {"temperature": 0.0} if number % 2 else {"temperature": 1.5, "seed": number}
    return Request(
        prompt_ids=ids(20 + number, number),
        params=SamplingParams(max_tokens=60, **{**settings, **params}),  # type: ignore[arg-type]
        grammar=grammar,
    )


@cache
def cold(request: Request) -> tuple[TokenOutput, ...]:
    assert request.grammar is not None
    return plain(build(), request, stop=(END,), matcher=COMPILER.compile(request.grammar)).outputs


def text(outputs: Sequence[TokenOutput]) -> str:
    assert outputs[-1].token_id == END
    return b"".join(TEXTS[o.token_id] or f"<{o.token_id}>".encode() for o in outputs[:-1]).decode()


def harness(right: float, **settings: int) -> Harness:
    """Make an engine whose guesses are right so often, and anything at all otherwise."""
    oracle = Oracle(lambda sequence: [o.token_id for o in cold(sequence.request)], right, seed=1)
    config = EngineConfig(page_size=8, speculate_depth=14)
    return Harness(build(), config, drafter=oracle, grammars=COMPILER, stop=(END,), **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(("right", "blocks"), [(0.5, 60), (0.9, 11)])
def test_17_grammar_speculation_and_preemption_together(right: float, blocks: int) -> None:
    """17: drafts that went on beyond the end of the reasoning left the grammar behind, and the engine died."""
    rng = random.Random(0)
    asked = [ask(REASONED, number) for number in range(5)]
    engine = harness(right, slots=4, blocks=blocks)
    streams = [engine.submit(request) for request in asked]
    while engine.core.has_work:
        engine.step()
        if engine.core.scheduler.running and rng.random() < 0.3:
            engine.core.scheduler.preempt(rng.choice(engine.core.scheduler.running))
    for request, stream in zip(asked, streams, strict=True):
        outputs = tuple(stream)
        assert outputs == cold(request)
        assert re.fullmatch(r"[a-z ]{10,25}<250>\[\d{1,5}(,\d{1,5}){0,3}\]", text(outputs))
    metrics = engine.core.metrics
    assert metrics.preemptions > 0
    assert 0 < metrics.accepted <= metrics.drafted
    engine.check_nothing_is_held()


def test_17_a_draft_across_the_end_of_the_reasoning_is_taken_whole() -> None:
    """17: a step may end the reasoning and go on with the answer, and the grammar follows through both."""
    request = ask(REASONED, 1)
    engine = harness(1.0)
    crossed = []
    run = engine.core._runner.run
    engine.core._runner.run = lambda rows: (crossed.extend(row.ids for row in rows), run(rows))[1]  # type: ignore[method-assign, assignment]
    assert engine.answer(request) == cold(request)
    assert any(THINK_END in row[:-1] for row in crossed if len(row) < 20)
    assert engine.core.metrics.steps <= 5


def test_50_a_schema_may_be_a_choice_at_the_top() -> None:
    """50: a schema with anyOf at the top was refused."""
    asked = [ask(EITHER, number) for number in range(8)]
    engine = harness(0.6)
    streams = [engine.submit(request) for request in asked]
    engine.run()
    kinds = set()
    for request, stream in zip(asked, streams, strict=True):
        outputs = tuple(stream)
        assert outputs == cold(request)
        value = json.loads(text(outputs))
        kinds.add(type(value))
        assert value in ({"a": 1}, {"a": 23}) or (1 <= len(value) <= 4 and set(value) <= {1, 4})
    assert kinds == {dict, list}

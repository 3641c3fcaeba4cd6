"""Plain text continued, one or many at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from openk3.engine.config import EngineConfig
from openk3.engine.metrics import EngineMetrics
from openk3.errors import ConfigError
from openk3.llm.llm import LLM
from openk3.protocol.sampling import SamplingParams

GREEDY = SamplingParams(temperature=0.0, max_tokens=8)
PROMPTS = ["Once upon a time", "The cat", "In the beginning", "é"]


def test_one_text_is_as_many_at_once(llm: LLM) -> None:
    alone = [llm.generate(prompt, GREEDY) for prompt in PROMPTS]
    together = llm.generate(PROMPTS, GREEDY)
    assert [answer.tokens for answer in together] == [answer.tokens for answer in alone]
    assert [answer.text for answer in together] == [answer.text for answer in alone]
    assert all(answer.text and answer.finish_reason == "length" for answer in together)


def test_a_text_says_what_it_cost(llm: LLM) -> None:
    answer = llm.generate("The cat", GREEDY)
    assert answer.stats is not None
    assert answer.usage.completion_tokens == len(answer.tokens) == answer.stats.completion_tokens == 8
    assert answer.usage.prompt_tokens == answer.stats.prompt_tokens


def test_token_ids_are_continued_like_their_text(llm: LLM) -> None:
    ids = llm.tokenizer.encode("The cat")
    expected = llm.generate("The cat", GREEDY).tokens
    assert llm.generate(ids, GREEDY).tokens == expected
    assert [answer.tokens for answer in llm.generate([ids, "The cat"], GREEDY)] == [expected] * 2


def test_no_texts_are_no_answers(llm: LLM) -> None:
    assert llm.generate([], GREEDY) == []


def test_a_stop_string_ends_a_text(llm: LLM) -> None:
    whole = llm.generate("The cat", GREEDY).text
    cut = llm.generate("The cat", replace(GREEDY, stop=(whole[3:5],)))
    assert cut.text == whole[: whole.index(whole[3:5])]
    assert cut.finish_reason == "stop"


def test_more_texts_than_may_wait_take_turns() -> None:
    with LLM("nano", engine=EngineConfig(memory_bytes=1 << 30, max_running=1, max_waiting=1)) as small:
        answers = small.generate(["The cat"] * 5, replace(GREEDY, max_tokens=3))
        streams = small.stream_text_many("The cat", replace(GREEDY, max_tokens=3), n=5)
        shown = [list(stream) for stream in streams]
    assert len({answer.text for answer in answers}) == 1 and len(answers) == 5
    assert len(shown) == 5 and shown[0] and all(deltas == shown[0] for deltas in shown)


def test_several_continuations_have_seeds_of_their_own(llm: LLM) -> None:
    params = SamplingParams(temperature=1.5, seed=7, max_tokens=8)
    first, second = (answer.finish() for answer in llm.stream_text_many("The cat", params, n=2))
    assert first.tokens != second.tokens
    assert llm.generate("The cat", replace(params, seed=8)).tokens == tuple(second.tokens)


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ("", "the prompt is empty"),
        (["The cat", ""], "the prompt is empty"),
        (["The cat", 3], "the prompt is 3, expected text or a list of token ids"),
        ([1, True], "the prompt is 1, expected text"),
        ([[]], "the prompt is empty"),
        ([10**6], "prompt token 0 is 1000000, expected an id"),
        (b"x", "the prompt is 120, expected text"),
        (3, "prompts are 3, expected a text or a list of texts"),
    ],
)
def test_what_is_no_text_is_refused(
    llm: LLM, idle_metrics: Callable[[], EngineMetrics], prompts: str, message: str
) -> None:
    before = idle_metrics()
    with pytest.raises(ConfigError, match=message):
        llm.generate(prompts, GREEDY)
    assert llm.metrics == before

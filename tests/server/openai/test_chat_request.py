"""What Chat Completions accepts and refuses: parameters and switches, as the hosted service does."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from openk3.server.endpoint import ServedModel
from openk3.server.faults import Fault
from openk3.server.openai.chat import ChatCompletions
from openk3.server.openai.chat_request import ChatView, StreamOptions
from tests.server.openai.conftest import Reader, ask, refusal

DISABLED = {"type": "disabled"}

# Parameters (tests/params of the verifier).


def test_omitted_parameters_are_the_models(read: Reader) -> None:
    params = read().options["params"]
    assert params is not None
    assert (params.temperature, params.top_p, params.max_tokens) == (1.0, 0.95, 131_072)


def test_omitted_parameters_without_thinking_are_cooler(read: Reader) -> None:
    params = read(thinking=DISABLED).options["params"]
    assert params is not None
    assert (params.temperature, params.top_p) == (0.6, 0.95)


@pytest.mark.parametrize("thinking", [{"type": "enabled"}, DISABLED])
@pytest.mark.parametrize("temperature", [0, 0.0, 0.6, 1, 1.0])
def test_temperatures_from_0_to_1_are_honoured(read: Reader, thinking: Any, temperature: float) -> None:
    params = read(thinking=thinking, temperature=temperature).options["params"]
    assert params is not None
    assert params.temperature == temperature


WRONG_PARAMETERS: list[tuple[str, Any]] = [
    ("temperature", 1.1),
    ("temperature", 2.0),
    ("temperature", -0.1),
    ("temperature", "1"),
    ("temperature", True),
    ("temperature", math.nan),
    ("temperature", math.inf),
    ("temperature", 10**400),
    ("top_p", 0.8),
    ("top_p", 0),
    ("top_p", "0.95"),
    ("presence_penalty", 0.5),
    ("frequency_penalty", 0.5),
    ("n", 2),
    ("n", 0),
    ("n", "1"),
]


@pytest.mark.parametrize("thinking", [{"type": "enabled"}, DISABLED])
@pytest.mark.parametrize(("name", "value"), WRONG_PARAMETERS)
def test_wrong_parameters_are_refused_by_name(read: Reader, thinking: Any, name: str, value: Any) -> None:
    fault = refusal(read, thinking=thinking, **{name: value})
    assert fault.param == name
    assert name in fault.text
    assert "expected" in fault.text


def test_fixed_parameters_may_be_said(read: Reader) -> None:
    params = read(top_p=0.95, n=1, presence_penalty=0, frequency_penalty=0.0, seed=None).options["params"]
    assert params is not None
    assert params.top_p == 0.95


def test_free_sampling_allows_what_the_rules_fix(model: ServedModel) -> None:
    free = replace(model, free_sampling=True)
    given = {"temperature": 1.5, "top_p": 0.5, "presence_penalty": -1, "top_k": 5, "logit_bias": {"65": -100}}
    given |= {"min_tokens": 2, "stop_token_ids": [7], "repetition_penalty": 1.1}
    params = ChatCompletions().read(ask(**given), free).options["params"]
    assert params is not None
    assert (params.temperature, params.top_p, params.presence_penalty, params.top_k) == (1.5, 0.5, -1, 5)
    assert dict(params.logit_bias) == {65: -100}
    assert (params.min_tokens, params.stop_token_ids, params.repetition_penalty) == (2, (7,), 1.1)
    for wrong in ({"logit_bias": {"a": 1}}, {"logit_bias": {"1": "x"}}, {"min_tokens": -1}, {"repetition_penalty": 0}):
        with pytest.raises(Fault):
            ChatCompletions().read(ask(**wrong), free)


def test_what_the_rules_do_not_know_is_ignored(read: Reader) -> None:
    assert read(user="me", metadata={"a": 1}, store=True, service_tier="auto", logit_bias={}, x={}) == read()
    assert read(parallel_tool_calls=False, prompt_cache_key="k", safety_identifier="s") == read()


@pytest.mark.parametrize(("seed", "used"), [(0, 0), (42, 42), (-1, 2**64 - 1), (2**64 - 1, 2**64 - 1)])
def test_seeds_are_honoured(read: Reader, seed: int, used: int) -> None:
    params = read(seed=seed).options["params"]
    assert params is not None
    assert params.seed == used


@pytest.mark.parametrize("seed", [2**64, -(2**63) - 1, 1.5, "1", True])
def test_other_seeds_are_refused(read: Reader, seed: Any) -> None:
    assert refusal(read, seed=seed).param == "seed"


@pytest.mark.parametrize(
    ("stop", "used"), [("a", ("a",)), (["a", "b"], ("a", "b")), ([], ()), (None, ()), (["x" * 32] * 5, ("x" * 32,) * 5)]
)
def test_stop_strings(read: Reader, stop: Any, used: tuple[str, ...]) -> None:
    params = read(stop=stop).options["params"]
    assert params is not None
    assert params.stop == used


@pytest.mark.parametrize("stop", ["", [""], "x" * 33, "é" * 17, ["a"] * 6, [1], 1, {}, ["a", None]])
def test_other_stop_strings_are_refused(read: Reader, stop: Any) -> None:
    assert (refusal(read, stop=stop).param or "").startswith("stop")


# Limits of length.


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_a_limit_of_ones_own_is_remembered(read: Reader, name: str) -> None:
    asked = read(**{name: 7})
    assert asked.explicit_max_tokens == 7
    assert asked.options["params"] is not None
    assert asked.options["params"].max_tokens == 7


def test_of_two_limits_the_newer_name_counts(read: Reader) -> None:
    assert read(max_tokens=7, max_completion_tokens=9).explicit_max_tokens == 9
    assert read(max_tokens=7, max_completion_tokens=None).explicit_max_tokens == 7


def test_no_limit_is_not_an_explicit_one(read: Reader) -> None:
    assert read().explicit_max_tokens is None


@pytest.mark.parametrize("limit", [0, -1, 1.5, "5", True, (1 << 20) + 1, math.inf])
def test_other_limits_are_refused(read: Reader, limit: Any) -> None:
    assert refusal(read, max_tokens=limit).param == "max_tokens"


# Switches of thinking.


@pytest.mark.parametrize(
    "off",
    [
        {"thinking": DISABLED},
        {"chat_template_kwargs": {"thinking": False}},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"enable_thinking": False},
        {"reasoning_effort": "none"},
        {"thinking": {"type": "disabled", "effort": "medium", "keep": "none"}},
        {"thinking": DISABLED, "reasoning_effort": "extreme"},
    ],
)
def test_thinking_can_be_turned_off(read: Reader, off: dict[str, Any]) -> None:
    asked = read(**off)
    assert asked.options["thinking"] is False
    assert asked.body == ChatView(thinking=False, channel="response")


@pytest.mark.parametrize(
    ("switches", "effort"),
    [
        ({}, "max"),
        ({"thinking": {"type": "enabled"}}, "max"),
        ({"thinking": {"type": "enabled", "keep": "all", "effort": "low"}}, "low"),
        ({"thinking": {"effort": "high"}, "reasoning_effort": "low"}, "high"),
        ({"thinking": {"type": "enabled", "effort": None}, "reasoning_effort": "low"}, "low"),
        ({"chat_template_kwargs": {"thinking": True, "thinking_effort": "high"}, "reasoning_effort": "low"}, "high"),
        ({"chat_template_kwargs": {"preserve_thinking": True}}, "max"),
        ({"reasoning_effort": "low"}, "low"),
        ({"reasoning_effort": "high"}, "high"),
        ({"reasoning_effort": "max"}, "max"),
        ({"reasoning_effort": None}, "max"),
        ({"thinking": {"type": "enabled"}, "reasoning_effort": "none"}, "max"),
        ({"thinking": {"type": "enabled"}, "enable_thinking": False}, "max"),
    ],
)
def test_effort_has_a_precedence(read: Reader, switches: dict[str, Any], effort: str) -> None:
    asked = read(**switches)
    assert (asked.options["thinking"], asked.options["effort"]) == (True, effort)


@pytest.mark.parametrize(
    ("switches", "param"),
    [
        ({"reasoning_effort": "medium"}, "reasoning_effort"),
        ({"reasoning_effort": "minimal"}, "reasoning_effort"),
        ({"reasoning_effort": ""}, "reasoning_effort"),
        ({"reasoning_effort": {"effort": "max"}}, "reasoning_effort"),
        ({"reasoning_effort": 3}, "reasoning_effort"),
        ({"thinking": {"type": "enabled", "effort": "medium"}}, "thinking.effort"),
        ({"thinking": {"effort": ["max"]}}, "thinking.effort"),
        ({"thinking": {"type": "adaptive"}}, "thinking.type"),
        ({"thinking": {"type": True}}, "thinking.type"),
        ({"thinking": True}, "thinking"),
        ({"thinking": {"keep": "none"}}, "thinking.keep"),
        ({"thinking": {"keep": 1}}, "thinking.keep"),
        ({"chat_template_kwargs": {"thinking": "yes"}}, "chat_template_kwargs.thinking"),
        ({"chat_template_kwargs": {"thinking_effort": "medium"}}, "chat_template_kwargs.thinking_effort"),
        ({"chat_template_kwargs": {"preserve_thinking": False}}, "chat_template_kwargs.preserve_thinking"),
        ({"enable_thinking": 1}, "enable_thinking"),
    ],
)
def test_switches_without_meaning_are_refused(read: Reader, switches: dict[str, Any], param: str) -> None:
    assert refusal(read, **switches).param == param


# Streams and probabilities.


def test_options_of_streams_and_probabilities(read: Reader) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True, "include_internal_content": True}
    asked = read(stream=True, stream_options=options, logprobs=True, top_logprobs=3)
    assert asked.stream
    assert asked.body == ChatView(
        logprobs=True, stream=StreamOptions(include_usage=True, continuous_usage=True, internal_content=True)
    )
    assert asked.options["params"] is not None
    assert asked.options["params"].top_logprobs == 3
    assert read(stream=None, stream_options=None, logprobs=None, top_logprobs=None) == read()


@pytest.mark.parametrize(
    "fields",
    [
        {"stream": "yes"},
        {"stream": 1},
        {"stream_options": []},
        {"stream_options": {"include_usage": 1}},
        {"logprobs": 5},
        {"top_logprobs": 2},
        {"logprobs": True, "top_logprobs": 21},
        {"logprobs": True, "top_logprobs": -1},
        {"logprobs": True, "top_logprobs": "2"},
        {"parallel_tool_calls": "no"},
        {"prompt_cache_key": 5},
    ],
)
def test_other_options_are_refused(read: Reader, fields: dict[str, Any]) -> None:
    refusal(read, **fields)

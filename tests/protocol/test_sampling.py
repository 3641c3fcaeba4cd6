"""Sampling parameters are checked once, when they are made."""

from __future__ import annotations

import math
import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from openk3.errors import ConfigError
from openk3.protocol.sampling import LogitBias, SamplingParams


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("top_p", 0.0),
        ("top_p", 1.01),
        ("top_p", math.nan),
        ("top_k", -1),
        ("seed", -1),
        ("seed", 2**64),
        ("max_tokens", 0),
        ("stop", ("a", "")),
        ("min_p", -0.1),
        ("min_p", 1.1),
        ("min_p", math.nan),
        ("presence_penalty", 2.1),
        ("presence_penalty", math.nan),
        ("frequency_penalty", -2.1),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", math.inf),
        ("min_tokens", -1),
        ("top_logprobs", -1),
        ("top_logprobs", 21),
        ("logit_bias", {-1: 1.0}),
        ("logit_bias", {True: 1.0}),
        ("logit_bias", {"5": 1.0}),
        ("logit_bias", {5: math.inf}),
        ("logit_bias", {5: math.nan}),
    ],
)
def test_values_without_meaning_are_named(field: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"^{field} "):
        SamplingParams(**{field: value})


def test_the_limits_themselves_are_allowed() -> None:
    SamplingParams(temperature=0.0, top_p=1.0, top_k=0, seed=2**64 - 1, max_tokens=1)
    SamplingParams(seed=0, top_p=1e-9)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", "1"),
        ("temperature", True),
        ("temperature", 10**400),
        ("top_p", None),
        ("top_k", 2.5),
        ("seed", 1.5),
        ("max_tokens", 1.5),
        ("min_tokens", None),
        ("top_logprobs", 1.5),
        ("stop", "abc"),
        ("stop", (1,)),
        ("stop", None),
        ("stop_token_ids", 5),
        ("stop_token_ids", (1.5,)),
        ("stop_token_ids", "a"),
        ("logit_bias", {1: "x"}),
        ("logit_bias", {1: 10**400}),
        ("logit_bias", {1: True}),
        ("logit_bias", {1: None}),
        ("logit_bias", {1.0: 2.0}),
        ("logit_bias", {10**400: 1.0}),
        ("logit_bias", None),
        ("logit_bias", 3),
        ("logit_bias", [(1, 2.0)]),
        ("temperature", 10**5000),
        ("temperature", np.bool_(True)),
        ("top_p", "1"),
        ("min_p", True),
        ("presence_penalty", 1j),
        ("frequency_penalty", []),
        ("repetition_penalty", None),
        ("top_k", np.float32(2)),
        ("top_k", 10**400),
        ("top_k", 2**64),
        ("seed", True),
        ("seed", 10**5000),
        ("max_tokens", "5"),
        ("max_tokens", 10**400),
        ("max_tokens", True),
        ("top_logprobs", None),
        ("stop", b"a"),
        ("stop", (b"a",)),
        ("stop", {"a": 1}),
        ("stop_token_ids", ("a",)),
        ("stop_token_ids", (True,)),
        ("stop_token_ids", (-1,)),
        ("stop_token_ids", (10**400,)),
        ("stop_token_ids", b"ab"),
        ("stop_token_ids", None),
        ("stop_token_ids", np.array([[1]])),
    ],
    ids=lambda value: "" if isinstance(value, int) and abs(value) > 10**9 else f"{value!r:.20}",
)
def test_values_of_a_wrong_type_are_named_at_once(field: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"^{field} ") as caught:
        SamplingParams(**{field: value})
    assert len(str(caught.value)) < 250


def test_numbers_of_numpy_become_pythons_own() -> None:
    given: dict[str, Any] = {
        "temperature": np.float32(0.5),
        "top_k": np.int64(3),
        "seed": np.uint64(2**64 - 1),
        "stop_token_ids": np.array([1, 2]),
        "logit_bias": {np.int64(5): np.float64(1.5)},
    }
    params = SamplingParams(**given)
    same = SamplingParams(temperature=0.5, top_k=3, seed=2**64 - 1, stop_token_ids=(1, 2), logit_bias={5: 1.5})
    assert params == same
    assert hash(params) == hash(same)
    assert repr(params) == repr(same)


def test_lists_sets_and_iterators_become_tuples() -> None:
    params = SamplingParams(stop=iter(["a", "b"]), stop_token_ids={7})  # type: ignore[arg-type]
    assert (params.stop, params.stop_token_ids) == (("a", "b"), (7,))


def test_an_answer_cannot_have_to_be_longer_than_it_may() -> None:
    with pytest.raises(ConfigError, match="min_tokens is 5, expected at most max_tokens, 4"):
        SamplingParams(min_tokens=5, max_tokens=4)
    SamplingParams(min_tokens=4, max_tokens=4)


def test_equal_parameters_are_equal_and_have_one_hash() -> None:
    given = {3: 1.0, 4: -2.0}
    params = SamplingParams(logit_bias=given, stop=("a",))
    assert params == SamplingParams(logit_bias=dict(reversed(given.items())), stop=("a",))
    assert hash(params) == hash(SamplingParams(logit_bias=LogitBias(given), stop=["a"]))  # type: ignore[arg-type]
    assert params != replace(params, logit_bias={3: 1.0})
    assert pickle.loads(pickle.dumps(params)) == params
    given[5] = 1.0
    assert len(params.logit_bias) == 2

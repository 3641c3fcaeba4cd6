"""Sampling parameters are checked once, when they are made."""

from __future__ import annotations

import math
from typing import Any

import pytest

from openk3.errors import ConfigError
from openk3.protocol.sampling import SamplingParams


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
    ],
)
def test_values_without_meaning_are_named(field: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"^{field} "):
        SamplingParams(**{field: value})


def test_the_limits_themselves_are_allowed() -> None:
    SamplingParams(temperature=0.0, top_p=1.0, top_k=0, seed=2**64 - 1, max_tokens=1)
    SamplingParams(seed=0, top_p=1e-9)

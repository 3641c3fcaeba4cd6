"""Bodies that are generated from what the endpoints understand, right ones and wrong ones: no error of the server's.

Unusual: the small run is the same each time; the large one (``-m slow``) does not repeat itself.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from tests.server.fuzz.api import BODIES, DOCUMENT
from tests.server.fuzz.asking import Asker, check

schemathesis = pytest.importorskip("schemathesis")

SMALL, LARGE = 6, 1500
SLOW = settings(
    max_examples=LARGE,
    derandomize=False,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate, Phase.shrink],
)


def _bytes(body: Any) -> bytes:
    """A body as it is sent; one that is left out is no object of JSON's."""
    if isinstance(body, bytes):
        return body
    return json.dumps(body).encode() if isinstance(body, dict | list | str | int | float | None) else b""


def _run(asker: Asker, path: str, mode: str, profile: settings) -> Counter[bool]:
    operation = schemathesis.openapi.from_dict(DOCUMENT)[path]["POST"]
    outcomes: Counter[bool] = Counter()

    @profile
    @given(operation.as_strategy(generation_mode=schemathesis.GenerationMode(mode)))
    def run(case: Any) -> None:
        outcomes[check(path, asker.ask(path, _bytes(case.body)))] += 1

    run()
    return outcomes


@pytest.mark.usefixtures("healthy")
@pytest.mark.parametrize("path", BODIES)
def test_bodies_of_the_right_form_are_answered_or_refused(asker: Asker, path: str) -> None:
    assert _run(asker, path, "positive", settings(max_examples=SMALL))[True]


@pytest.mark.usefixtures("healthy")
@pytest.mark.parametrize("path", BODIES)
def test_bodies_of_a_wrong_form_are_refused(asker: Asker, path: str) -> None:
    assert _run(asker, path, "negative", settings(max_examples=SMALL))[False]


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.usefixtures("healthy")
@pytest.mark.parametrize("mode", ["positive", "negative"])
@pytest.mark.parametrize("path", BODIES)
def test_many_bodies(asker: Asker, path: str, mode: str) -> None:
    outcomes = _run(asker, path, mode, SLOW)
    print(path, mode, dict(outcomes))
    assert sum(outcomes.values()) >= LARGE // 2

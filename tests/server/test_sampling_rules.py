"""The rules of sampling parameters, which all dialects share (KVV's suite of parameters asks for these)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from openk3.checkpoint.resolve import resolve_model
from openk3.protocol.sampling import SamplingParams
from openk3.server.endpoint import ServedModel
from openk3.server.faults import Fault
from openk3.server.sampling_rules import read_sampling
from openk3.server.values import Fields
from openk3.tokenizer.bpe import Tokenizer

OWN = SamplingParams(temperature=1.0, top_p=0.95)


@pytest.fixture(scope="module")
def model() -> ServedModel:
    tokenizer = Tokenizer.load(resolve_model("nano"))
    return ServedModel(names=("kimi-k3",), tokenizer=tokenizer, sampling=OWN, max_tokens=1000)


def test_what_is_left_out_is_the_models_own(model: ServedModel) -> None:
    assert read_sampling(Fields({}), model, thinking=True) == OWN
    assert read_sampling(Fields({}), model, thinking=False) == replace(OWN, temperature=0.6)
    cool = replace(model, sampling=SamplingParams(temperature=0.3))
    assert read_sampling(Fields({}), cool, thinking=False).temperature == 0.3


@pytest.mark.parametrize("thinking", [True, False])
@pytest.mark.parametrize("temperature", [0, 0.6, 1.0])
def test_temperatures_up_to_1_are_honoured(model: ServedModel, temperature: float, thinking: bool) -> None:
    assert read_sampling(Fields({"temperature": temperature}), model, thinking=thinking).temperature == temperature


@pytest.mark.parametrize("thinking", [True, False])
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"temperature": 1.1}, "temperature is 1.1, expected a number from 0 to 1"),
        ({"temperature": 2.0}, "temperature is 2.0, expected"),
        ({"temperature": -0.1}, "temperature is -0.1, expected"),
        ({"temperature": True}, "temperature is true, expected a number"),
        ({"top_p": 0.8}, "top_p is 0.8, expected 0.95: it is fixed for this model"),
        ({"presence_penalty": 0.5}, "presence_penalty is 0.5, expected 0"),
        ({"frequency_penalty": 0.5}, "frequency_penalty is 0.5, expected 0"),
    ],
)
def test_others_are_refused(model: ServedModel, given: dict[str, Any], message: str, thinking: bool) -> None:
    with pytest.raises(Fault, match=message) as raised:
        read_sampling(Fields(given), model, thinking=thinking)
    assert raised.value.status == 400


def test_free_sampling_lifts_the_rules_but_not_reason(model: ServedModel) -> None:
    free = replace(model, free_sampling=True)
    given = {"temperature": 1.5, "top_p": 0.5, "top_k": 40, "min_p": 0.1, "presence_penalty": -1}
    assert read_sampling(Fields(given), free, thinking=True) == replace(OWN, **given)
    with pytest.raises(Fault, match="min_p is 2.0, expected a number from 0"):
        read_sampling(Fields({"min_p": 2}), free, thinking=True)

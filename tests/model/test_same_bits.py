"""A text has one result: alone or packed, whole or in pieces, the logits are equal bit for bit."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from openk3.checkpoint.random_init import init_parameters
from openk3.model.model import K3ForCausalLM
from openk3.model.presets import preset
from openk3.ops import row_independent

DTYPES = [torch.float32, torch.bfloat16]


@cache
def build(name: str, dtype: torch.dtype) -> K3ForCausalLM:
    model = K3ForCausalLM(preset(name), dtype=dtype)
    init_parameters(model, seed=0)
    return model.eval()


def prompt(length: int, seed: int) -> torch.Tensor:
    return torch.randint(0, 256, (length,), generator=torch.Generator().manual_seed(seed))


@pytest.fixture(autouse=True)
def _inference() -> object:
    with torch.inference_mode():
        yield


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ["mini4", "tail9", "k128", "prop8"])
@settings(max_examples=6)
@given(lengths=st.lists(st.integers(1, 80), min_size=1, max_size=5), data=st.data())
def test_pieces_in_company_equal_the_whole_alone(
    name: str, dtype: torch.dtype, lengths: list[int], data: st.DataObject
) -> None:
    model = build(name, dtype)
    prompts = [prompt(length, seed=i) for i, length in enumerate(lengths)]
    alone = [model(ids, [len(ids)], [model.new_state()]) for ids in prompts]
    states, outputs, done = [model.new_state() for _ in prompts], [[] for _ in prompts], [0] * len(prompts)
    while any(at < length for at, length in zip(done, lengths, strict=True)):
        active = [i for i, length in enumerate(lengths) if done[i] < length]
        active = data.draw(st.lists(st.sampled_from(active), min_size=1, unique=True))
        steps = [data.draw(st.one_of(st.just(1), st.integers(1, lengths[i] - done[i]))) for i in active]
        pieces = [prompts[i][done[i] : done[i] + step] for i, step in zip(active, steps, strict=True)]
        logits = model(torch.cat(pieces), steps, [states[i] for i in active])
        for i, step, part in zip(active, steps, logits.split(steps), strict=True):
            outputs[i].append(part)
            done[i] += step
    for parts, expected in zip(outputs, alone, strict=True):
        assert torch.equal(torch.cat(parts), expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_rewound_state_continues_as_if_nothing_had_been_read(dtype: torch.dtype) -> None:
    model = build("mtp5", dtype)
    ids = prompt(60, seed=1)
    expected = model(ids, [60], [model.new_state()])
    for kept in (1, 14, 15, 16, 17, 31, 40):
        state = model.new_state()
        model(ids[:kept], [kept], [state])
        mark = state.mark()
        model(prompt(25, seed=2), [25], [state])
        state.rewind(mark)
        assert torch.equal(model(ids[kept:], [60 - kept], [state]), expected[kept:])


def test_bit_equality_holds_for_the_products_of_every_preset_on_this_machine() -> None:
    shapes = {(8, 64), (3, 64), (1, 64), (48, 64), (64, 48), (192, 192), (256, 96), (1024, 1024)}
    assert all(row_independent.holds(shapes, dtype) for dtype in DTYPES)


@pytest.mark.parametrize("function", [torch.sigmoid, torch.tanh, torch.exp])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_elementwise_does_not_depend_on_the_place(function: object, dtype: torch.dtype) -> None:
    x = torch.randn(3000, generator=torch.Generator().manual_seed(0)).to(dtype)
    whole = row_independent.elementwise(function, x)  # type: ignore[arg-type]
    for first, last in ((0, 1), (5, 36), (100, 163), (2999, 3000), (7, 2990)):
        assert torch.equal(row_independent.elementwise(function, x[first:last]), whole[first:last])  # type: ignore[arg-type]

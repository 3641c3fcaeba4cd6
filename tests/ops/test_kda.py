"""KDA: the recurrence against worked numbers, every other form against the recurrence, values and gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from openk3.errors import ConfigError
from openk3.ops.kda.chunk import kda_chunk
from openk3.ops.kda.gate import bounded_log_decay
from openk3.ops.kda.reference import kda_recurrent
from openk3.ops.kda.stream import MAX_OPEN, kda_stream, settle
from openk3.ops.norm.reference import l2_normalize
from openk3.ops.packed import PackedSequences
from tests.tolerances import FLOAT32, relative_gap

HEADS, KEY, VALUE = 2, 16, 8
DECAYS = {"typical": (-3.0, -0.1), "forgetful": (-5.0, -4.99), "remembering": (-1e-4, -1e-6), "mixed": (-5.0, -1e-6)}


def inputs(
    tokens: int,
    decay: tuple[float, float] = (-3.0, -0.1),
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    correlated: float = 0.0,
    key: int = KEY,
    value: int = VALUE,
) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    common = correlated * normal(1, HEADS, key)
    q, k = l2_normalize(normal(tokens, HEADS, key) + common), l2_normalize(normal(tokens, HEADS, key) + common)
    low, high = decay
    log_decay = low + (high - low) * torch.rand(tokens, HEADS, key, generator=generator, dtype=torch.float64)
    beta = torch.sigmoid(normal(tokens, HEADS))
    return [x.to(dtype) for x in (q, k, normal(tokens, HEADS, value), log_decay, beta)]


def initial(sequences: int, seed: int = 1, dtype: torch.dtype = torch.float32, value: int = VALUE) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(sequences, HEADS, KEY, value, generator=generator, dtype=torch.float64).to(dtype)


@pytest.mark.parametrize(
    ("A_log", "z", "dt_bias", "log_decay", "decay"),
    [
        (0.0, 0.0, 0.0, -2.5, 0.082084999),
        (0.5, 1.0, -2.0, -0.806409242, 0.446458315),
        (1.0, -3.0, 0.5, -0.005586599, 0.994428977),
        (-0.4684, 2.0, 1.0, -4.336911468, 0.013076854),
    ],
)
def test_bounded_decay_of_worked_values(A_log: float, z: float, dt_bias: float, log_decay: float, decay: float) -> None:
    result = bounded_log_decay(torch.tensor([[[z]]]), torch.tensor([A_log]), torch.tensor([dt_bias]), -5.0)
    assert result.item() == pytest.approx(log_decay, rel=1e-6)
    assert result.exp().item() == pytest.approx(decay, rel=1e-6)


def test_rate_is_one_scalar_per_head_even_where_head_count_equals_head_dim() -> None:
    z, A_log = torch.zeros(1, 3, 3), torch.tensor([-1.0, 0.0, 1.0])
    result = bounded_log_decay(z, A_log, torch.ones(9), -5.0)
    expected = [-5 / (1 + math.exp(-math.exp(a))) for a in A_log.tolist()]
    for head in range(3):
        assert result[0, head].tolist() == pytest.approx([expected[head]] * 3, rel=1e-6)


def test_decay_never_leaves_its_bound() -> None:
    z = torch.tensor([-1e4, -50.0, 50.0, 1e4]).view(1, 1, 4)
    result = bounded_log_decay(z, torch.tensor([1.0]), torch.zeros(4), -5.0)
    assert result.min() >= -5.0 and result.max() <= 0.0


@pytest.mark.parametrize("form", [kda_recurrent, kda_chunk])
def test_worked_example_of_three_tokens(form: object) -> None:
    raw_q = torch.tensor([[1.0, 1], [1, -1], [2, 0]])[:, None]
    raw_k = torch.tensor([[3.0, 4], [0, 2], [1, 1]])[:, None]
    v = torch.tensor([[1.0, 2], [3, -1], [0, 1]])[:, None]
    log_decay = torch.tensor([[-1.0, -2], [-0.5, -0.1], [-4, -0.01]])[:, None]
    beta = torch.sigmoid(torch.tensor([[0.0], [1.0], [-1.0]]))
    o, state = form(l2_normalize(raw_q), l2_normalize(raw_k), v, log_decay, beta, PackedSequences([3]))  # type: ignore[operator]
    expected = [[0.34999991, 0.69999981], [-1.05427756, 0.45014896], [-0.21358705, 0.18904427]]
    torch.testing.assert_close(o[:, 0], torch.tensor(expected), rtol=0, atol=2e-7)
    expected_state = [[-0.302057733, 0.267349004], [1.962333395, -0.270359076]]
    torch.testing.assert_close(state[0, 0], torch.tensor(expected_state), rtol=0, atol=2e-7)


@pytest.mark.parametrize("name", DECAYS)
@pytest.mark.parametrize("first", range(1, 301, 50))
def test_chunk_form_equals_recurrence_at_every_length_to_300(first: int, name: str) -> None:
    for length in range(first, first + 50):
        tensors = inputs(length, DECAYS[name], seed=length)
        packed, state = PackedSequences([length]), initial(1)
        expected, expected_state = kda_recurrent(*tensors, packed, state)
        o, new_state = kda_chunk(*tensors, packed, state)
        assert relative_gap(o, expected) < FLOAT32["kda"], length
        assert relative_gap(new_state, expected_state) < FLOAT32["kda"], length


def test_chunk_form_survives_nearly_equal_keys_that_never_fade() -> None:
    """Correlated keys make the triangular system ill-conditioned; a product of matrix powers fails here."""
    tensors = inputs(128, DECAYS["remembering"], correlated=5.0, dtype=torch.float32)
    exact = [x.double() for x in tensors]
    packed = PackedSequences([128])
    truth, _ = kda_recurrent(*exact, packed)
    o, _ = kda_chunk(*tensors, packed)
    recurrent, _ = kda_recurrent(*tensors, packed)
    assert relative_gap(o.double(), truth) < max(FLOAT32["kda"], 3 * relative_gap(recurrent.double(), truth))


@pytest.mark.parametrize("form", [kda_recurrent, kda_chunk])
@given(cuts=st.lists(st.integers(1, 40), min_size=1, max_size=6))
def test_any_split_gives_the_whole(form: object, cuts: list[int]) -> None:
    total = sum(cuts)
    tensors = inputs(total, DECAYS["mixed"], seed=total)
    whole, whole_state = kda_recurrent(*tensors, PackedSequences([total]))
    state, parts, at = None, [], 0
    for cut in cuts:
        piece = [x[at : at + cut] for x in tensors]
        o, state = form(*piece, PackedSequences([cut]), state)  # type: ignore[operator]
        parts.append(o)
        at += cut
    assert relative_gap(torch.cat(parts), whole) < FLOAT32["kda"]
    assert state is not None and relative_gap(state, whole_state) < FLOAT32["kda"]


@pytest.mark.parametrize("name", DECAYS)
@pytest.mark.parametrize("length", [1, 2, 16, 17, 50, 130, 300])
def test_gradients_of_the_chunk_form_equal_the_recurrence_in_float64(length: int, name: str) -> None:
    generator = torch.Generator().manual_seed(3)
    weights = torch.randn(length, HEADS, VALUE, generator=generator, dtype=torch.float64)
    state_weights = torch.randn(1, HEADS, KEY, VALUE, generator=generator, dtype=torch.float64)

    def gradients(form: object, dtype: torch.dtype) -> list[torch.Tensor]:
        leaves = [x.requires_grad_() for x in (*inputs(length, DECAYS[name], dtype=dtype), initial(1, dtype=dtype))]
        o, state = form(*leaves[:5], PackedSequences([length]), leaves[5])  # type: ignore[operator]
        ((o * weights.to(dtype)).sum() + (state * state_weights.to(dtype)).sum()).backward()
        return [leaf.grad.double() for leaf in leaves if leaf.grad is not None]

    expected = gradients(kda_recurrent, torch.float64)
    assert len(expected) == 6
    for form in (kda_chunk, kda_recurrent):
        for got, want in zip(gradients(form, torch.float32), expected, strict=True):
            assert relative_gap(got, want) < FLOAT32["kda_gradient"]


def test_numerical_gradients() -> None:
    leaves = [x.requires_grad_() for x in inputs(19, DECAYS["mixed"], dtype=torch.float64, key=3, value=2)]

    def run(*tensors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return kda_chunk(*tensors, PackedSequences([17, 2]))

    assert torch.autograd.gradcheck(run, leaves, fast_mode=True)


@pytest.mark.parametrize("form", [kda_recurrent, kda_chunk])
def test_packed_sequences_do_not_see_each_other(form: object) -> None:
    lengths = [3, 1, 40, 16, 1, 17]
    tensors, state = inputs(sum(lengths), DECAYS["mixed"]), initial(len(lengths))
    packed = PackedSequences(lengths)
    tensors[2][packed.starts[2] : packed.starts[3]] = float("nan")  # one sequence is poisoned
    o, new_state = form(*tensors, packed, state)  # type: ignore[operator]
    for i, (start, length) in enumerate(zip(packed.starts, lengths, strict=True)):
        alone = [x[start : start + length] for x in tensors]
        expected, expected_state = form(*alone, PackedSequences([length]), state[i : i + 1])  # type: ignore[operator]
        if i == 2:
            assert torch.isnan(o[start : start + length]).any() and torch.isnan(new_state[i]).any()
            continue
        assert relative_gap(o[start : start + length], expected) < FLOAT32["packed"]
        assert relative_gap(new_state[i : i + 1], expected_state) < FLOAT32["packed"]


def stream(
    tensors: list[torch.Tensor], cuts: list[int], company: Sequence[int] = ()
) -> tuple[torch.Tensor, torch.Tensor]:
    """Run one sequence piece by piece, each piece beside other sequences of ``company`` tokens; NaN where unused."""
    total, at, state = sum(cuts), 0, initial(1 + len(company), value=KEY)
    opened = torch.full((1 + len(company), MAX_OPEN, HEADS, 3 * KEY + 1), float("nan"))
    others = inputs(sum(company), DECAYS["mixed"], seed=9, value=KEY) if company else []
    outputs = []
    for cut in cuts:
        piece = [x[at : at + cut] for x in tensors]
        batch = [torch.cat([x, other]) for x, other in zip(piece, others, strict=True)] if company else piece
        num_open = at % 16
        step = kda_stream(*batch, PackedSequences([cut, *company]), state, opened, [num_open, *(0 for _ in company)])
        outputs.append(step.output[:cut])
        state = torch.cat([step.state[:1], state[1:]])
        keep = (num_open + cut) % 16
        rows = torch.cat([opened[0, :num_open], step.rows[:cut]])
        opened[0] = float("nan")
        opened[0, :keep] = rows[len(rows) - keep :]
        at += cut
    return torch.cat(outputs), settle(state[0], opened[0, : total % 16])


@pytest.mark.parametrize("name", DECAYS)
@given(data=st.data(), total=st.integers(1, 70))
def test_every_split_of_a_stream_has_the_same_bits_in_any_company(name: str, data: st.DataObject, total: int) -> None:
    tensors = inputs(total, DECAYS[name], seed=total, value=KEY)
    whole, state = stream(tensors, [total])
    cuts, left = [], total
    while left:
        cuts.append(data.draw(st.integers(1, left)))
        left -= cuts[-1]
    output, last = stream(tensors, cuts, data.draw(st.lists(st.integers(1, 40), max_size=3)))
    assert torch.equal(output, whole) and torch.equal(last, state)
    expected, expected_state = kda_recurrent(*tensors, PackedSequences([total]), initial(1, value=KEY))
    assert relative_gap(whole, expected) < FLOAT32["kda"]
    assert relative_gap(state[None], expected_state) < FLOAT32["kda"]


def test_rows_of_a_chunk_do_not_depend_on_later_rows() -> None:
    tensors = inputs(16, DECAYS["mixed"])
    whole, _ = kda_chunk(*tensors, PackedSequences([16]))
    for length in range(1, 16):
        part, _ = kda_chunk(*(x[:length] for x in tensors), PackedSequences([length]))
        assert torch.equal(part, whole[:length]), length


@pytest.mark.parametrize("num_open", [[16], [-1], [0, 0]])
def test_open_rows_that_cannot_be_are_refused(num_open: list[int]) -> None:
    opened = torch.zeros(1, MAX_OPEN, HEADS, 2 * KEY + VALUE + 1)
    with pytest.raises(ConfigError, match="open rows"):
        kda_stream(*inputs(3), PackedSequences([3]), initial(1), opened, num_open)


@pytest.mark.parametrize("form", [kda_recurrent, kda_chunk])
def test_later_tokens_change_nothing_before_them(form: object) -> None:
    tensors = inputs(40, DECAYS["mixed"])
    changed = [x.clone() for x in tensors]
    for x in changed:
        x[25:] = x[25:].flip(0)
    before, _ = form(*tensors, PackedSequences([40]))  # type: ignore[operator]
    after, _ = form(*changed, PackedSequences([40]))  # type: ignore[operator]
    assert relative_gap(after[:25], before[:25]) < 1e-6
    assert (after[25:] - before[25:]).abs().max() > 1e-2


def test_state_is_not_written_in_place() -> None:
    tensors, state = inputs(20), initial(1)
    for form in (kda_recurrent, kda_chunk):
        kept = state.clone()
        form(*tensors, PackedSequences([20]), state)
        assert torch.equal(state, kept)


def test_low_precision_inputs_keep_a_float32_state() -> None:
    tensors = [x.bfloat16() for x in inputs(20)]
    for form in (kda_recurrent, kda_chunk):
        o, state = form(*tensors, PackedSequences([20]))
        assert o.dtype == state.dtype == torch.float32


def test_thousands_of_steps_stay_finite_and_near_float64() -> None:
    length = 4096
    tensors = inputs(length, DECAYS["remembering"])
    o, state = kda_chunk(*tensors, PackedSequences([length]))
    truth, true_state = kda_chunk(*(x.double() for x in tensors), PackedSequences([length]))
    assert relative_gap(o.double(), truth) < 1e-4
    assert relative_gap(state.double(), true_state) < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("name", DECAYS)
def test_a_long_sequence_stays_near_float64(name: str) -> None:
    """65,536 tokens through the chunk form, and the same in pieces of odd sizes."""
    length = 65_536
    tensors = inputs(length, DECAYS[name])
    truth, true_state = kda_chunk(*(x.double() for x in tensors), PackedSequences([length]))
    state, parts = None, []
    for piece in zip(*(x.split(1013) for x in tensors), strict=True):
        o, state = kda_chunk(*piece, PackedSequences([len(piece[0])]), state)
        parts.append(o)
    assert relative_gap(torch.cat(parts).double(), truth) < 1e-4
    assert state is not None and relative_gap(state.double(), true_state) < 1e-4

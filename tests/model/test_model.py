"""The model as a whole: packed = alone, any split = whole, states, dtypes, forms, MTP, partial sums over ranks."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from openk3.checkpoint.random_init import init_parameters
from openk3.errors import ConfigError
from openk3.model.model import K3ForCausalLM, ModelOptions
from openk3.model.moe import LatentMoE
from openk3.model.presets import preset
from openk3.model.state import SequenceState
from tests.tolerances import FLOAT32

SPECIAL_LENGTHS = (1, 2, 3, 4, 15, 16, 17, 63, 64, 65, 129)


@pytest.fixture(autouse=True)
def no_gradients(request: pytest.FixtureRequest) -> Iterator[None]:
    with torch.set_grad_enabled("gradient" in request.node.name):
        yield


def build(
    name: str = "mini4", seed: int = 0, dtype: torch.dtype = torch.float32, experts: str = "plain", **options: str
) -> K3ForCausalLM:
    model = K3ForCausalLM(preset(name), dtype=dtype, options=ModelOptions(**options), experts=experts)  # type: ignore[arg-type]
    init_parameters(model, seed)
    return model.eval()


def prompt(length: int, vocab: int = 256, seed: int = 0) -> torch.Tensor:
    return torch.randint(vocab, (length,), generator=torch.Generator().manual_seed(1000 * seed + length))


def close(actual: torch.Tensor, expected: torch.Tensor) -> bool:
    assert torch.isfinite(expected).all()
    gap = (actual - expected).abs()
    return bool(gap.max() <= FLOAT32["model"] and gap.median() <= FLOAT32["model_median"])


@pytest.mark.parametrize("name", ["one", "mini4", "tail9", "k128", "route896", "prop8", "mtp5"])
def test_whole_equals_steps_equals_pieces(name: str) -> None:
    model, ids = build(name), prompt(37)
    whole = model(ids, [37])
    assert whole.shape == (37, model.config.vocab_size) and whole.std() > 0.1
    for cuts in ([1] * 37, [16, 16, 5], [1, 30, 6]):
        state = model.new_state()
        assert close(torch.cat([model(piece, [len(piece)], [state]) for piece in ids.split(cuts)]), whole)


@pytest.mark.parametrize("length", SPECIAL_LENGTHS)
def test_lengths_around_every_boundary(length: int) -> None:
    model, ids = build("tail9"), prompt(length)
    whole = model(ids, [length])
    for cut in {1, 2, 3, length // 2, length - 1} & set(range(1, length)):
        state = model.new_state()
        assert close(torch.cat([model(part, [len(part)], [state]) for part in (ids[:cut], ids[cut:])]), whole)


@settings(max_examples=15)
@given(lengths=st.lists(st.integers(1, 40), min_size=1, max_size=5), data=st.data())
def test_packed_with_states_equals_alone(lengths: list[int], data: st.DataObject) -> None:
    """Sequences of different ages in one batch, some advancing by one token and some by many."""
    model = build("tail9")
    prompts = [prompt(length, seed=i) for i, length in enumerate(lengths)]
    alone = [model(ids, [len(ids)]) for ids in prompts]
    states, outputs, done = [model.new_state() for _ in prompts], [[] for _ in prompts], [0] * len(prompts)
    while any(at < length for at, length in zip(done, lengths, strict=True)):
        active = [i for i, length in enumerate(lengths) if done[i] < length]
        active = data.draw(st.lists(st.sampled_from(active), min_size=1, unique=True))
        steps = [data.draw(st.integers(1, lengths[i] - done[i])) for i in active]
        pieces = [prompts[i][done[i] : done[i] + step] for i, step in zip(active, steps, strict=True)]
        logits = model(torch.cat(pieces), steps, [states[i] for i in active])
        for i, step, part in zip(active, steps, logits.split(steps), strict=True):
            outputs[i].append(part)
            done[i] += step
    for parts, expected in zip(outputs, alone, strict=True):
        assert close(torch.cat(parts), expected)


def test_packed_without_states_equals_alone_with_gradient() -> None:
    model, lengths = build("tail9"), [5, 1, 33, 2]
    prompts = [prompt(length, seed=i) for i, length in enumerate(lengths)]
    weights = torch.randn(sum(lengths), 256, generator=torch.Generator().manual_seed(5))

    def gradients(batches: list[list[int]]) -> dict[str, torch.Tensor]:
        model.zero_grad()
        for batch in batches:
            rows = torch.cat([w for i, w in enumerate(weights.split(lengths)) if i in batch])
            logits = model(torch.cat([prompts[i] for i in batch]), [lengths[i] for i in batch])
            (logits * rows).sum().backward()
        return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}

    together, apart = gradients([[0, 1, 2, 3]]), gradients([[0], [1], [2], [3]])
    assert together.keys() == apart.keys()
    for name, expected in apart.items():
        scale = expected.abs().max().clamp(min=1e-3)
        assert (together[name] - expected).abs().max() <= 1e-3 * scale, name


def test_every_parameter_but_the_first_query_gets_a_gradient() -> None:
    model = build("mini4")
    model(prompt(60), [60]).square().mean().backward()
    silent = {name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().max() > 0}
    # layer 0's attention has one source only, whatever its query
    assert silent == {f"model.layers.0.self_attention_res_{part}.weight" for part in ("proj", "norm")}


@pytest.mark.parametrize(
    "options",
    [{"kda": "recurrent"}, {"kda": "chunk"}, {"mla": "absorbed"}, {"mla": "expanded"}, {"attn_res": "two_phase"}],
    ids=lambda o: next(iter(o.values())),
)
@pytest.mark.parametrize("name", ["tail9", "route896", "k128"])
def test_forms_agree(name: str, options: dict[str, str]) -> None:
    ids = prompt(50)
    assert close(build(name, **options)(ids, [20, 30]), build(name)(ids, [20, 30]))


def test_last_only_equals_the_last_rows() -> None:
    model, ids = build(), prompt(12)
    every = model(ids, [5, 1, 6])
    assert close(model(ids, [5, 1, 6], last_only=True), every[[4, 5, 11]])


def test_clone_goes_on_independently() -> None:
    model, ids = build("tail9"), prompt(20)
    state = model.new_state()
    model(ids[:10], [10], [state])
    copy = state.clone()
    first = model(ids[10:], [10], [state])
    model(prompt(3, seed=7), [3], [copy])  # the copy takes another path
    assert copy.num_tokens == 13 and state.num_tokens == 20
    assert close(torch.cat([model(ids[:10], [10]), first]), model(ids, [20]))


def test_state_never_reads_recycled_memory() -> None:
    """A cache whose spare rows hold NaN gives the same numbers."""
    model, ids = build("tail9"), prompt(70)
    state = model.new_state()
    model(ids[:10], [10], [state])
    for cache in state.mla.values():
        cache._buffer[cache.num_tokens :] = float("nan")
    assert close(model(ids[10:], [60], [state]), model(ids, [70])[10:])


def test_two_models_in_two_threads_do_not_disturb_each_other() -> None:
    models, ids = [build(seed=1), build("tail9", seed=2, kda="recurrent")], prompt(33)
    expected = [model(ids, [33]) for model in models]
    wrong: list[int] = []

    def work(number: int) -> None:
        with torch.inference_mode():
            for _ in range(5):
                if not torch.equal(models[number](ids, [33]), expected[number]):
                    wrong.append(number)

    threads = [threading.Thread(target=work, args=(i % 2,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert not wrong and not any(thread.is_alive() for thread in threads)


def test_blanket_cast_keeps_float32_parameters() -> None:
    names = ("A_log", "dt_bias", "conv1d.weight", "o_norm.weight", "e_score_correction_bias")
    model = build(dtype=torch.bfloat16)
    before = {n: t.clone() for n, t in model.state_dict().items() if n.endswith(names)}
    assert len(before) == 3 * 6 + 3
    for cast in (model.bfloat16, model.half, lambda: model.to(torch.bfloat16)):
        after = cast().state_dict()
        for name, value in before.items():
            assert after[name].dtype == torch.float32 and torch.equal(after[name], value), name
    assert model.lm_head.weight.dtype == torch.bfloat16
    assert model.double().state_dict()["model.layers.0.self_attn.A_log"].dtype == torch.float64


def test_bfloat16_state_is_float32_where_it_sums() -> None:
    model = build(dtype=torch.bfloat16)
    state = model.new_state()
    assert model(prompt(9), [9], [state]).dtype == torch.float32
    assert {s.recurrent.dtype for s in state.kda.values()} == {torch.float32}
    assert (
        {s.conv.dtype for s in state.kda.values()} == {c.entries.dtype for c in state.mla.values()} == {torch.bfloat16}
    )


def test_bfloat16_is_near_float32_over_many_steps() -> None:
    """The same weights with forced routing: a state in float32 does not drift."""
    low, ids = build("mini4", dtype=torch.bfloat16), prompt(400)
    exact = build("mini4", dtype=torch.bfloat16).float()
    seen: dict[str, torch.Tensor] = {}
    expected = exact(ids, [400], observe=seen.__setitem__)
    imposed = {layer: seen[f"layer{layer}.router_experts"] for layer in (1, 2, 3)}
    logits = low(ids, [400], imposed_experts=imposed)
    early, late = ((logits - expected)[rows].square().mean().sqrt() for rows in (slice(0, 100), slice(300, 400)))
    assert late <= 2 * early


@pytest.mark.parametrize(
    ("ids", "lengths", "message"),
    [
        ([1, 2, 3], [2], "shape"),
        ([1, 300], [2], "token id 300"),
        ([-1, 2], [2], "token id -1"),
        ([], [], "lengths"),
        ([1, 2], [2, 0], "lengths"),
    ],
)
def test_bad_input_is_refused(ids: list[int], lengths: list[int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build()(torch.tensor(ids, dtype=torch.int64), lengths)


def test_ids_that_are_not_whole_numbers_are_refused() -> None:
    with pytest.raises(ConfigError, match="input_ids is torch.float32"):
        build()(torch.zeros(3), [3])


@pytest.mark.parametrize(
    "experts", [torch.zeros(3, 2), torch.zeros(3, 1, dtype=torch.int64), torch.full((3, 2), 8), torch.full((3, 2), -1)]
)
def test_imposed_experts_that_do_not_fit_are_refused(experts: torch.Tensor) -> None:
    model = build()
    state = model.new_state()
    with pytest.raises(ConfigError, match="imposed experts of layer 1"):
        model(prompt(3), [3], [state], imposed_experts={1: experts})
    assert state.num_tokens == 0 and not state.kda[0].recurrent.any()


def test_mtp_layers_have_experts_whatever_the_frequency() -> None:
    config = replace(preset("mtp5"), moe_layer_freq=3)
    assert [config.is_moe(layer) for layer in range(5)] == [False, False, False, True, True]
    assert isinstance(K3ForCausalLM(config).model.layers[4].block_sparse_moe, LatentMoE)


def test_wrong_states_are_refused() -> None:
    model = build()
    state = model.new_state()
    with pytest.raises(ConfigError, match="1 states for 2 sequences"):
        model(prompt(4), [2, 2], [state])
    with pytest.raises(ConfigError, match="same state"):
        model(prompt(4), [2, 2], [state, state])
    assert state.num_tokens == 0


def test_unknown_option_is_refused() -> None:
    with pytest.raises(ConfigError, match="kda is 'fast'"):
        ModelOptions(kda="fast")  # type: ignore[arg-type]


@pytest.mark.parametrize("rule", ["ceil", "floor"])
def test_rounded_expert_activations_change_a_little(rule: str) -> None:
    """MXFP8 inputs are another rounding of the same model: different, and near."""
    ids, seen, rounded = prompt(40), {}, {}
    build()(ids, [40], observe=seen.__setitem__)
    imposed = {layer: seen[f"layer{layer}.router_experts"] for layer in (1, 2, 3)}
    build(expert_activations=f"mxfp8-{rule}")(ids, [40], observe=rounded.__setitem__, imposed_experts=imposed)
    exact, low = (x["layer1.moe_latent_sum"] for x in (seen, rounded))
    assert 1e-3 < ((low - exact).norm() / exact.norm()).item() < 0.1


def test_rounded_expert_activations_pass_the_gradient_straight_through() -> None:
    ids, seen, gradients = prompt(40), {}, []
    with torch.no_grad():
        build()(ids, [40], observe=seen.__setitem__)
    imposed = {layer: seen[f"layer{layer}.router_experts"] for layer in (1, 2, 3)}
    for model in (build(), build(expert_activations="mxfp8-ceil")):
        model(ids, [40], imposed_experts=imposed).square().mean().backward()
        gradients.append(model.model.layers[3].block_sparse_moe.routed_expert_down_proj.weight.grad.flatten())
    assert torch.cosine_similarity(*gradients, dim=0) > 0.5  # without it, this gradient is zero


def mtp_case() -> tuple[K3ForCausalLM, torch.Tensor, torch.Tensor]:
    model, ids = build("mtp5"), prompt(21)
    return model, ids, model.mixed(ids[:-1], [20])


def test_draft_of_the_whole_equals_steps() -> None:
    model, ids, hidden = mtp_case()
    _, whole = model.draft(hidden, ids[1:], [20])
    state, rows = model.new_state(), []
    for t in range(20):
        rows.append(model.draft(hidden[t : t + 1], ids[t + 1 : t + 2], [1], [state])[1])
    assert close(torch.cat(rows), whole)


def test_draft_ignores_the_embedding_at_position_zero_only() -> None:
    model, ids, hidden = mtp_case()
    other = ids[1:].clone()
    other[0] = (other[0] + 1) % 256
    _, logits = model.draft(hidden, ids[1:], [20])
    _, changed_first = model.draft(hidden, other, [20])
    torch.testing.assert_close(changed_first, logits)
    other = ids[1:].clone()
    other[5] = (other[5] + 1) % 256
    assert (model.draft(hidden, other, [20])[1][5:] - logits[5:]).abs().max() > 1e-2


def test_chained_drafts_continue_from_the_hidden_before_the_norm() -> None:
    model, ids, hidden = mtp_case()
    first_hidden, first = model.draft(hidden, ids[1:], [20])
    second_hidden, second = model.draft(first_hidden, ids[1:], [20], step=1)
    assert first_hidden.shape == second_hidden.shape == hidden.shape
    assert torch.isfinite(second).all() and (second - first).abs().max() > 1e-3


class SumOfRanks(torch.nn.Module):
    """Adds the parts that other ranks computed; here, on one process, they were computed before."""

    def __init__(self, others: list[torch.Tensor]) -> None:
        super().__init__()
        self.others = others

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return sum(self.others, x)  # type: ignore[return-value]


def test_experts_held_by_two_ranks_meet_before_the_norm() -> None:
    model, ids = build(), prompt(30)
    expected = model(ids, [30])
    moe = model.model.layers[1].block_sparse_moe
    assert isinstance(moe, LatentMoE)
    parts: list[torch.Tensor] = []
    moe.held_experts = range(4, 8)
    handle = moe.partial_sum.register_forward_hook(lambda _m, _i, out: parts.append(out))
    model(ids, [30])
    handle.remove()
    moe.held_experts, moe.partial_sum = range(4), SumOfRanks(parts)
    assert parts[0].dtype == torch.float32
    assert close(model(ids, [30]), expected)


def test_sequences_of_a_new_state_start_empty() -> None:
    state = SequenceState(preset("tail9"), torch.float32)
    assert state.num_tokens == 0 and set(state.kda) == {0, 1, 2, 4, 5, 6} and set(state.mla) == {3, 7, 8}
    assert not any(tensor.any() for tensor in itertools.chain.from_iterable(state.kda.values()))

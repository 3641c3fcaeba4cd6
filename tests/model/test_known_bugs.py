"""Twenty bugs that other implementations of this architecture had, each with a test that fails if we have it.

Unusual: the number in a name is the row of the list of known bugs in docs/concepts/known-bugs.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from openk3.checkpoint.random_init import init_parameters
from openk3.engine.engine import Engine
from openk3.errors import ConfigError, NumericsError
from openk3.model import attn_res
from openk3.model.config import KDAConfig
from openk3.model.model import K3ForCausalLM, ModelOptions
from openk3.model.moe import SituMLP
from openk3.model.presets import preset
from openk3.ops.attn_res.two_phase import StoredMix, merge_partial
from openk3.ops.e8m0 import decode
from openk3.ops.kda.chunk import kda_chunk
from openk3.ops.kda.gate import bounded_log_decay
from openk3.ops.kda.reference import kda_recurrent
from openk3.ops.mla.reference import mla_absorbed, mla_expanded
from openk3.ops.mxfp4.reference import pack, unpack
from openk3.ops.norm.reference import l2_normalize
from openk3.ops.packed import PackedSequences
from openk3.protocol.request import Request
from openk3.protocol.sampling import SamplingParams
from tests.tolerances import FLOAT32, relative_gap


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.fixture
def nan_filled_memory() -> Iterator[None]:
    """Make every uninitialised tensor hold NaN, so that reading one shows."""
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def build(name: str = "mini4", dtype: torch.dtype = torch.float32, **options: str) -> K3ForCausalLM:
    model = K3ForCausalLM(preset(name), dtype=dtype, options=ModelOptions(**options))  # type: ignore[arg-type]
    init_parameters(model, 0)
    return model.eval()


def prompt(length: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(256, (length,), generator=torch.Generator().manual_seed(seed))


def close(actual: torch.Tensor, expected: torch.Tensor) -> bool:
    assert torch.isfinite(expected).all()
    return bool((actual - expected).abs().max() <= FLOAT32["model"])


def test_01_a_log_is_per_head_where_its_stored_length_equals_the_channels() -> None:
    z, A_log = torch.randn(3, 4, 4), torch.zeros(4)
    before = bounded_log_decay(z, A_log, torch.zeros(16), -5.0)
    A_log[2] = 1.0
    changed = (bounded_log_decay(z, A_log, torch.zeros(16), -5.0) != before).flatten(2).any(-1).any(0)
    assert changed.tolist() == [False, False, True, False]


def test_02_bound_is_a_sigmoid_and_not_a_clamp() -> None:
    z = torch.tensor([-2.0, 2.0, 6.0]).view(3, 1, 1)
    log_decay = bounded_log_decay(z, torch.zeros(1), torch.zeros(1), -5.0).flatten()
    torch.testing.assert_close(log_decay, -5 * torch.sigmoid(z.flatten()))
    clamped = (-F.softplus(z.flatten())).clamp(min=-5.0)
    assert (log_decay - clamped).abs().min() > 0.01


def test_03_l2_epsilon_is_on_the_sum_of_squares() -> None:
    small = torch.full((1, 128), 1e-4)
    assert l2_normalize(small)[0, 0].item() == pytest.approx(1e-4 / (128e-8 + 1e-6) ** 0.5, rel=1e-5)


def test_04_router_logits_are_not_rounded_to_bfloat16() -> None:
    model, seen = build("route896", torch.bfloat16), {}
    model(prompt(40), [40], observe=seen.__setitem__)
    router = model.model.layers[1].block_sparse_moe.gate
    exact = torch.sigmoid(seen["layer1.mlp_in"].double() @ router.weight.double().T)
    assert (seen["layer1.router_scores"] - exact).abs().max() < 1e-6
    rounded = (seen["layer1.mlp_in"] @ router.weight.T).sigmoid()
    assert (rounded - exact).abs().max() > 1e-4  # the rounding that must not happen would show


def test_05_routed_sum_is_weighted_in_float32() -> None:
    model, seen = build("mini4", torch.bfloat16), {}
    model(prompt(30), [30], observe=seen.__setitem__)
    moe = model.model.layers[1].block_sparse_moe
    matrices, latent = moe.experts.opened(torch.bfloat16), seen["layer1.moe_latent_in"]
    for t in range(30):
        experts = seen["layer1.router_experts"][t].tolist()
        outputs = torch.stack([moe._run_expert(matrices(e), latent[t : t + 1])[0].float() for e in experts])
        exact = (outputs * seen["layer1.router_weights"][t][:, None]).sum(0)
        assert ((seen["layer1.moe_latent_sum"][t].float() - exact).abs() <= 2**-7 * exact.abs() + 1e-6).all()


def test_06_triangular_system_is_solved_without_powers() -> None:
    """Nearly equal keys that never fade: powers of the matrix reach 1e6 before they cancel."""
    generator = torch.Generator().manual_seed(0)
    k = l2_normalize(torch.randn(1, 1, 16, generator=generator) + 0.05 * torch.randn(256, 1, 16, generator=generator))
    v, beta = torch.randn(256, 1, 16, generator=generator), torch.full((256, 1), 0.99)
    tensors = [k, k, v, torch.full((256, 1, 16), -1e-6), beta]
    exact, _ = kda_recurrent(*(x.double() for x in tensors), PackedSequences([256]))
    o, _ = kda_chunk(*tensors, PackedSequences([256]))
    assert relative_gap(o.double(), exact) < 1e-4


def test_07_state_means_the_same_to_both_forms() -> None:
    """Equal key and value widths hide a transposed state; one form continued from the other's state shows it."""
    ids, expected = prompt(48), build()(prompt(48), [48])
    for first, second in (("chunk", "recurrent"), ("recurrent", "chunk")):
        models = [build(kda=first), build(kda=second)]
        states = [model.new_state() for model in models]
        logits = [models[0](ids[:32], [32], [states[0]])]
        states[1].kda, states[1].mla, states[1].num_tokens = states[0].kda, states[0].mla, 32  # no row is open at 32
        logits.append(models[1](ids[32:], [16], [states[1]]))
        assert close(torch.cat(logits), expected)


def test_07_a_state_of_the_other_form_is_refused() -> None:
    with pytest.raises(ConfigError, match="kda form is recurrent"):
        build(kda="chunk")(prompt(3), [3], [build(kda="recurrent").new_state()])


def test_08_a_state_kept_at_a_boundary_continues_as_if_never_left() -> None:
    model, ids = build("tail9"), prompt(40)
    expected = model(ids, [40])
    for boundary in (1, 2, 3, 16, 33):
        state = model.new_state()
        model(ids[:boundary], [boundary], [state])
        snapshot = state.clone()
        model(prompt(9, seed=5), [9], [state])  # another request moves on from here
        assert close(model(ids[boundary:], [40 - boundary], [snapshot]), expected[boundary:])


def test_09_sequences_of_one_token_in_a_mixed_batch() -> None:
    model = build("tail9")
    lengths = [1, 70, 1, 1, 2]
    prompts = [prompt(length, seed=i) for i, length in enumerate(lengths)]
    logits = model(torch.cat(prompts), lengths).split(lengths)
    for ids, part in zip(prompts, logits, strict=True):
        assert close(part, model(ids, [len(ids)]))


@pytest.mark.parametrize("name", ["tail9", "route896"])
def test_10_no_uninitialised_row_reaches_anything(name: str, nan_filled_memory: None) -> None:
    model = build(name)
    lengths, state = [1, 35, 17], [model.new_state() for _ in range(3)]
    for _ in range(3):
        logits = model(prompt(53), lengths, state)
        assert torch.isfinite(logits).all()
    assert all(torch.isfinite(t).all() for s in state for kda in s.kda.values() for t in kda)


def test_11_nan_logits_stop_the_request_and_touch_no_other() -> None:
    model, ids = build("tail9"), prompt(12)
    expected = model(ids, [12])
    poisoned, healthy = model.new_state(), model.new_state()
    poisoned.kda[0].recurrent.fill_(float("nan"))
    logits = model(torch.cat([ids, ids]), [12, 12], [poisoned, healthy])
    assert torch.isnan(logits[:12]).all() and close(logits[12:], expected)
    assert not any(t.any() for kda in model.new_state().kda.values() for t in kda)
    model.lm_head.weight[5] = float("nan")
    request = Request(prompt_ids=tuple(ids.tolist()), params=SamplingParams(max_tokens=4))
    with Engine(model) as engine, pytest.raises(NumericsError):
        list(engine.submit(request))


def test_12_dense_and_shared_parts_are_capped() -> None:
    """SiLU has no cap: a large input would give more than 100 before the down projection."""
    config = replace(preset("mini4"), intermediate_size=64)
    mlp = SituMLP(config, 64, torch.float32)
    for linear in (mlp.gate_proj, mlp.up_proj, mlp.down_proj):
        linear.weight.data = torch.eye(64)
    assert mlp(torch.full((1, 64), 1e3)).abs().max() <= 100.0
    for layer in build().model.layers:
        part = getattr(layer, "mlp", None) or layer.block_sparse_moe.shared_experts
        assert isinstance(part, SituMLP)


def test_13_scales_are_powers_of_two_over_32_columns() -> None:
    assert decode(torch.tensor([126, 127, 130], dtype=torch.uint8), torch.float32).tolist() == [0.5, 1.0, 8.0]
    packed, scale = torch.full((2, 32), 0x22, dtype=torch.uint8), torch.tensor([[127, 128]] * 2, dtype=torch.uint8)
    assert unpack(packed, scale)[0].tolist() == [1.0] * 32 + [2.0] * 32


def test_14_drafts_continue_from_the_output_mix() -> None:
    model, seen, ids = build("mtp5"), {}, prompt(10)
    hidden = model.mixed(ids, [10], observe=seen.__setitem__)
    assert torch.equal(hidden, seen["final_mix"])
    assert (hidden - seen["layer3.prefix_sum"]).abs().max() > 0.1
    assert torch.equal(model.logits(model.model.norm(hidden)), model(ids, [10]))


def test_15_a_model_without_mtp_says_so_and_depth_wraps_around() -> None:
    with pytest.raises(ConfigError, match="num_nextn_predict_layers is 0"):
        build().draft(torch.zeros(1, 64), torch.zeros(1, dtype=torch.int64), [1])
    model, ids = build("mtp5"), prompt(5)
    hidden = model.mixed(ids[:-1], [4])
    results = [model.draft(hidden, ids[1:], [4], step=step)[1] for step in (0, 1, 7)]
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])


@pytest.mark.parametrize("name", ["one", "route896", "mini4", "tail9"])
def test_16_every_layer_runs_once_in_order(name: str) -> None:
    model, order = build(name), []

    def note(value: str, _: torch.Tensor) -> None:
        if value.endswith("prefix_sum"):
            order.append(int(value.removeprefix("layer").split(".")[0]))

    model(prompt(3), [3], observe=note)
    assert order == list(range(model.config.num_hidden_layers))


def test_17_states_belong_to_their_sequences_in_any_order() -> None:
    model = build("tail9")
    prompts = {i: prompt(24, seed=i) for i in range(3)}
    states = {i: model.new_state() for i in prompts}
    got: dict[int, list[torch.Tensor]] = {i: [] for i in prompts}
    for first, order in ((0, [0, 1, 2]), (8, [2, 0, 1]), (16, [1, 2, 0])):
        pieces = [prompts[i][first : first + 8] for i in order]
        logits = model(torch.cat(pieces), [8] * 3, [states[i] for i in order])
        for i, part in zip(order, logits.split(8), strict=True):
            got[i].append(part)
    for i, ids in prompts.items():
        assert close(torch.cat(got[i]), model(ids, [24]))


def test_18_nothing_stored_merges_to_what_is_new() -> None:
    partial, query = torch.randn(4, 8), torch.randn(8)
    nothing = StoredMix(torch.full((4,), float("-inf")), torch.zeros(4), torch.zeros(4, 8))
    torch.testing.assert_close(merge_partial(nothing, partial, query, 1e-5), partial)
    q, entries, kv_b = torch.randn(1, 2, 6), torch.randn(1, 7), torch.randn(2, 8, 5)
    for attend in (mla_expanded, mla_absorbed):  # the first token sees itself alone
        assert torch.isfinite(attend(q, entries, kv_b, 4)).all()


def test_19_blocks_are_counted_in_layers_and_the_last_layer_is_full_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    published = preset("k3")
    assert published.mla_layers == (*range(3, 92, 4), 92)
    assert [i for i in range(93) if published.starts_block(i)] == [0, 12, 24, 36, 48, 60, 72, 84]
    counts: list[int] = []
    right: Callable[..., torch.Tensor] = attn_res.mix
    monkeypatch.setattr(attn_res, "mix", lambda sources, *rest: counts.append(len(sources)) or right(sources, *rest))
    build("tail9")(prompt(2), [2])  # nine layers in blocks of four; layer 0's attention has one source, not counted
    expected = [2] + [n for i in range(1, 9) for n in (-(-i // 4) + 1, i // 4 + 2)] + [4]
    assert counts == expected


def test_20_packing_what_was_unpacked_gives_the_same_values() -> None:
    """A generic affine format would change them by a tenth."""
    packed = torch.randint(0, 256, (64, 96), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    scale = torch.randint(118, 127, (64, 6), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    for dtype in (torch.float32, torch.bfloat16):
        values = unpack(packed, scale, dtype)
        assert torch.equal(unpack(*pack(values), dtype), values)


def test_heads_as_many_as_channels_are_allowed() -> None:
    """The largest number of heads for which A_log's stored length suffices."""
    config = replace(preset("one"), kda=KDAConfig(num_heads=4, head_dim=4))
    model = K3ForCausalLM(config, dtype=torch.float32)
    init_parameters(model, 0)
    assert torch.isfinite(model(prompt(9), [9])).all()

"""Each deliberate mistake that the golden sets describe is made here on purpose, and is caught by the sets' limits.

Unusual: the size of each mistake's effect is compared with the one measured in the reference, which shows that the
mistake made here is the one described, and so that our code does not make it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from openk3.model import attn_res, kda, mla, moe
from openk3.model.model import K3ForCausalLM
from openk3.ops.kda import dispatch
from openk3.ops.norm.recompute import rms_norm
from openk3.ops.router.reference import Routing, route
from openk3.ops.situ.reference import situ_glu
from openk3.quant import experts as quant_experts
from tests.golden.conftest import GoldenSet

Patch = pytest.MonkeyPatch
Mistake = Callable[[K3ForCausalLM, Patch], None]
MISTAKES: dict[str, Mistake] = {}


def mistake(name: str) -> Callable[[Mistake], Mistake]:
    def register(make: Mistake) -> Mistake:
        MISTAKES[name] = make
        return make

    return register


def kda_layers(model: K3ForCausalLM) -> list[kda.KimiDeltaAttention]:
    return [m for m in model.modules() if isinstance(m, kda.KimiDeltaAttention)]


@mistake("A_log read per channel instead of per head")
def _(model: K3ForCausalLM, patch: Patch) -> None:
    def per_channel(z: torch.Tensor, A_log: torch.Tensor, dt_bias: torch.Tensor, bound: float) -> torch.Tensor:
        padded = F.pad(A_log, (0, z.shape[-1] - len(A_log)))
        return bound * torch.sigmoid(padded.exp() * (z + dt_bias.view(z.shape[-2:])))

    patch.setattr(kda, "bounded_log_decay", per_channel)


@mistake("decay = max(-exp(A)*softplus, -5)")
def _(model: K3ForCausalLM, patch: Patch) -> None:
    def clamped(z: torch.Tensor, A_log: torch.Tensor, dt_bias: torch.Tensor, bound: float) -> torch.Tensor:
        return (-A_log.exp()[:, None] * F.softplus(z + dt_bias.view(z.shape[-2:]))).clamp(min=bound)

    patch.setattr(kda, "bounded_log_decay", clamped)


@mistake("dt_bias added outside exp(A_log)")
def _(model: K3ForCausalLM, patch: Patch) -> None:
    def outside(z: torch.Tensor, A_log: torch.Tensor, dt_bias: torch.Tensor, bound: float) -> torch.Tensor:
        return bound * torch.sigmoid(A_log.exp()[:, None] * z + dt_bias.view(z.shape[-2:]))

    patch.setattr(kda, "bounded_log_decay", outside)


@mistake("q/k L2 eps on the mean")
def _(model: K3ForCausalLM, patch: Patch) -> None:
    def on_the_mean(x: torch.Tensor) -> torch.Tensor:
        return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() / x.shape[-1] ** 0.5

    patch.setattr(kda, "l2_normalize", on_the_mean)


@mistake("state read before the write")
def _(model: K3ForCausalLM, patch: Patch) -> None:
    def read_first(q, k, v, log_decay, beta, packed, form="chunk"):  # type: ignore[no-untyped-def]
        # reading S before the rank-one write leaves out the current token's own contribution q·k * beta * error
        outs, s = [], q.new_zeros(q.shape[1], q.shape[2], v.shape[2])
        for t in range(q.shape[0]):
            s = s * log_decay[t].exp()[..., None]
            outs.append(torch.einsum("hkv,hk->hv", s, q[t] * q.shape[-1] ** -0.5))
            error = v[t] - torch.einsum("hkv,hk->hv", s, k[t])
            s = s + k[t][..., None] * (beta[t][:, None] * error)[:, None]
        return torch.stack(outs)

    patch.setattr(kda, "kda", read_first)


@mistake("conv taps reversed")
def _(model: K3ForCausalLM, patch: Patch) -> None:
    for layer in kda_layers(model):
        for conv in (layer.q_conv1d, layer.k_conv1d, layer.v_conv1d):
            conv.weight.data = conv.weight.data.flip(-1)


@mistake("MLA low-rank norms eps 1e-5")
def _(model: K3ForCausalLM, patch: Patch) -> None:
    for name, module in model.named_modules():
        if name.endswith(("q_a_layernorm", "kv_a_layernorm")):
            module.eps = 1e-5  # type: ignore[assignment]


@mistake("q_a norm only eps 1e-5")
def _(model: K3ForCausalLM, patch: Patch) -> None:
    for name, module in model.named_modules():
        if name.endswith("q_a_layernorm"):
            module.eps = 1e-5  # type: ignore[assignment]


@mistake("layer/final norms eps 1e-6")
def _(model: K3ForCausalLM, patch: Patch) -> None:
    for name, module in model.named_modules():
        if name.endswith(("input_layernorm", "post_attention_layernorm", "model.norm", "routed_expert_norm")):
            module.eps = 1e-6  # type: ignore[assignment]


@mistake("KDA o_norm eps 1e-6")
def _(model: K3ForCausalLM, patch: Patch) -> None:
    for layer in kda_layers(model):
        layer.eps = 1e-6


@mistake("AttnRes key norm eps 1e-6")
def _(model: K3ForCausalLM, patch: Patch) -> None:
    right = attn_res.mix
    patch.setattr(attn_res, "mix", lambda sources, query, eps: right(sources, query, 1e-6))


@mistake("AttnRes block counted in sublayers")
def _(model: K3ForCausalLM, patch: Patch) -> None:
    size = model.config.attn_res_block_size // 2
    for layer in model.model.layers:
        layer.starts_block = layer.layer % size == 0  # type: ignore[operator,assignment]


@mistake("MLA scale from nope dims only")
def _(model: K3ForCausalLM, patch: Patch) -> None:
    shape = model.config.mla
    factor = (shape.qk_head_dim / shape.qk_nope_head_dim) ** 0.5
    for module in model.modules():
        if isinstance(module, mla.GatedMLA):
            module.q_b_proj.weight.data *= factor


@mistake("MLA output gate missing")
def _(model: K3ForCausalLM, patch: Patch) -> None:
    for module in model.modules():
        if isinstance(module, mla.GatedMLA):
            module.g_proj.weight.data.zero_()
            module.o_proj.weight.data *= 2  # undo the sigmoid of 0


@mistake("SiTU up-cap missing (linear beta)")
def _(model: K3ForCausalLM, patch: Patch) -> None:
    patch.setattr(moe, "situ_glu", lambda g, u, beta, linear: beta * torch.tanh(g / beta) * torch.sigmoid(g) * u)


@mistake("AttnRes projections zero (uniform mix)")
def _(model: K3ForCausalLM, patch: Patch) -> None:
    for name, parameter in model.named_parameters():
        if name.endswith("res_proj.weight"):
            parameter.data.zero_()


@mistake("correction bias ignored")
def _(model: K3ForCausalLM, patch: Patch) -> None:
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            buffer.zero_()


@mistake("A_log/dt_bias/conv/o_norm/correction bias rounded to BF16")
def _(model: K3ForCausalLM, patch: Patch) -> None:
    names = ("A_log", "dt_bias", "conv1d.weight", "o_norm.weight", "e_score_correction_bias")
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if name.endswith(names):
            tensor.data = tensor.data.bfloat16().float()


@mistake("latent norm missing")
def _(model: K3ForCausalLM, patch: Patch) -> None:
    for module in model.modules():
        if isinstance(module, moe.LatentMoE):
            module.routed_expert_norm = torch.nn.Identity()  # type: ignore[assignment]


@mistake("router product in BF16")
def _(model: K3ForCausalLM, patch: Patch) -> None:
    def low(x: torch.Tensor, weight: torch.Tensor, *rest: object, **options: object) -> Routing:
        logits = x.bfloat16() @ weight.bfloat16().T
        identity = torch.eye(weight.shape[0])
        return route(logits.float(), identity, *rest, **options)  # type: ignore[arg-type]

    patch.setattr(moe, "route", low)


@mistake("weights from biased scores")
def _(model: K3ForCausalLM, patch: Patch) -> None:
    def biased(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, *rest: object, **options: object) -> Routing:
        routing = route(x, weight, bias, *rest, **options)  # type: ignore[arg-type]
        chosen = (routing.scores + bias).gather(-1, routing.experts)
        return routing._replace(weights=chosen / chosen.sum(-1, keepdim=True))

    patch.setattr(moe, "route", biased)


def silu_glu(g: torch.Tensor, u: torch.Tensor, *betas: float) -> torch.Tensor:
    return F.silu(g) * u


@mistake("SiLU instead of SiTU in dense and shared")
def _(model: K3ForCausalLM, patch: Patch) -> None:
    width = model.config.moe.intermediate_size
    patch.setattr(moe, "situ_glu", lambda g, u, *b: (situ_glu if g.shape[-1] == width else silu_glu)(g, u, *b))


@mistake("SiLU instead of SiTU in routed experts")
def _(model: K3ForCausalLM, patch: Patch) -> None:
    width = model.config.moe.intermediate_size
    patch.setattr(moe, "situ_glu", lambda g, u, *b: (silu_glu if g.shape[-1] == width else situ_glu)(g, u, *b))


@mistake("MXFP4 nibble order swapped")
def _(model: K3ForCausalLM, patch: Patch) -> None:
    right = quant_experts.unpack
    patch.setattr(quant_experts, "unpack", lambda p, s, dtype: right((p >> 4) | (p << 4), s, dtype))


@pytest.mark.parametrize("name", MISTAKES)
def test_mistake_is_caught(golden: GoldenSet, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    model = golden.model()
    MISTAKES[name](model, monkeypatch)
    with torch.inference_mode():
        gap = (model(golden.ids(65), [65]) - golden.recorded["logits.len65"]).abs()
    assert gap.max() > golden.limits.largest and gap.median() > golden.limits.median
    measured = json.loads((golden.folder / "measured.json").read_text())["wrong_variants_len65_logits"][name]
    # the same mistake, to within what rounding does to a discontinuous choice of experts
    assert gap.median().item() == pytest.approx(measured["median"], rel=0.1)
    assert gap.max().item() == pytest.approx(measured["maxabs"], rel=0.25)


def test_every_described_mistake_is_made(golden: GoldenSet) -> None:
    described = json.loads((golden.folder / "measured.json").read_text())["wrong_variants_len65_logits"]
    assert set(described) == set(MISTAKES)


def test_dispatch_is_what_the_layer_calls() -> None:
    """The patches above replace names in the layer's module; this fails if the layer stops using them."""
    assert kda.kda is dispatch.kda and moe.situ_glu.__name__ == "situ_glu" and moe.route is route
    assert mla.RMSNorm.forward.__globals__["rms_norm"] is rms_norm and dataclasses.is_dataclass(moe.K3Config)

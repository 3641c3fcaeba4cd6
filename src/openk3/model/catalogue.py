"""Every tensor of a checkpoint in the published layout: name, shape, dtype and the parameter it fills.

Unusual: the tensors of a layer's routed experts are one spec per matrix (``{e}`` in its name), so that the whole
published model, 497,220 tensors, is about 2,800 specs and costs milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Literal

from openk3.model.config import K3Config, VisionConfig

Dtype = Literal["BF16", "F32", "U8"]
Group = Literal[
    "kda",
    "mla",
    "dense",
    "routed_experts",
    "shared_experts",
    "latent",
    "router",
    "attn_res",
    "norms",
    "mtp",
    "embedding",
    "head",
    "vision_tower",
    "mm_projector",
]

TEXT_PREFIX = "language_model."
ITEM_SIZE: dict[str, int] = {"BF16": 2, "F32": 4, "U8": 1}
MX_BLOCK = 32


@dataclass(frozen=True)
class TensorSpec:
    """One tensor of the file, or with ``experts`` > 1 one per routed expert (``{e}`` in ``name``)."""

    name: str
    shape: tuple[int, ...]
    dtype: Dtype
    parameter: str
    group: Group
    layer: int | None
    experts: int = 1

    @property
    def nbytes(self) -> int:
        """Bytes of one tensor (not times ``experts``)."""
        return prod(self.shape) * ITEM_SIZE[self.dtype]

    @property
    def per_expert(self) -> bool:
        """Whether this stands for one tensor per routed expert."""
        return "{e}" in self.name

    def name_of(self, expert: int) -> str:
        """Return the name in the file of ``expert``'s tensor; other specs ignore ``expert``."""
        return self.name.replace("{e}", str(expert))


def catalogue(config: K3Config, *, vision: bool) -> list[TensorSpec]:
    """List the tensors of a whole checkpoint: layers, MTP layers, model level, and the vision part if ``vision``.

    Within a layer F32 tensors come first, then BF16, then U8, which keeps each aligned in its file.
    """
    specs: list[TensorSpec] = []
    for layer in (*range(config.num_hidden_layers), *config.mtp_layers):
        specs += layer_specs(config, layer)
    specs += model_specs(config)
    if vision and config.vision is not None:
        specs += vision_specs(config.vision, config.hidden_size)
    return specs


def layer_specs(config: K3Config, layer: int) -> list[TensorSpec]:
    """List the tensors of zero-based ``layer``; the layers after the backbone are MTP layers."""
    make = _Maker(layer)
    if layer in config.mtp_layers:
        _mtp(make, config)
    else:
        _attn_res(make, config.hidden_size)
    make("input_layernorm.weight", "norms", config.hidden_size)
    make("post_attention_layernorm.weight", "norms", config.hidden_size)
    if layer < config.num_hidden_layers and config.layer_kinds[layer] == "kda":
        _kda(make, config)
    else:
        _mla(make, config)
    if config.is_moe(layer):
        _moe(make, config)
    else:
        _glu(make, "mlp.", "dense", config.hidden_size, config.intermediate_size)
    return sorted(make.specs, key=lambda spec: ("F32", "BF16", "U8").index(spec.dtype))


def model_specs(config: K3Config) -> list[TensorSpec]:
    """List the tensors outside the layers: head, embedding, final norm, output mix."""
    make, width = _Maker(None), config.hidden_size
    make("lm_head.weight", "head", config.vocab_size, width)
    make("model.embed_tokens.weight", "embedding", config.vocab_size, width)
    make("model.norm.weight", "norms", width)
    make("model.output_attn_res_norm.weight", "attn_res", width)
    make("model.output_attn_res_proj.weight", "attn_res", 1, width)
    return make.specs


def mtp_copies(config: K3Config) -> dict[str, TensorSpec]:
    """Map each copy that an MTP layer may carry to the backbone tensor it repeats; we never write copies."""
    embedding, head = (next(s for s in model_specs(config) if s.group == group) for group in ("embedding", "head"))
    return {
        f"{TEXT_PREFIX}model.layers.{layer}.{suffix}": original
        for layer in config.mtp_layers
        for suffix, original in (("embed_tokens.weight", embedding), ("shared_head.head.weight", head))
    }


def vision_specs(vision: VisionConfig, text_width: int) -> list[TensorSpec]:
    """List the tensors of the projector and the vision tower, in the order of their shards."""
    make, width = _Maker(None, prefix=""), vision.hidden_size
    merged = width * prod(vision.merge_kernel_size)
    make("mm_projector.proj.0.weight", "mm_projector", merged, merged)
    make("mm_projector.proj.2.weight", "mm_projector", text_width, merged)
    make("mm_projector.post_norm.weight", "mm_projector", text_width)
    tower = "vision_tower."
    make(tower + "patch_embed.proj.weight", "vision_tower", width, 3, vision.patch_size, vision.patch_size)
    make(
        tower + "patch_embed.pos_emb.weight",
        "vision_tower",
        vision.init_pos_emb_height,
        vision.init_pos_emb_width,
        width,
    )
    for block in range(vision.num_hidden_layers):
        _vision_block(make, f"{tower}encoder.blocks.{block}.", vision)
    make(tower + "encoder.final_layernorm.weight", "vision_tower", width)
    return make.specs


def expand(specs: list[TensorSpec]) -> Iterator[tuple[str, TensorSpec, int]]:
    """Yield (name, spec, expert) in file order: the tensors of one expert lie next to each other."""
    start = 0
    while start < len(specs):
        stop = start + 1
        if specs[start].per_expert:
            while stop < len(specs) and specs[stop].per_expert and specs[stop].layer == specs[start].layer:
                stop += 1
        for expert in range(specs[start].experts):
            for spec in specs[start:stop]:
                yield spec.name_of(expert), spec, expert
        start = stop


class _Maker:
    """Collects specs of one layer (or of the model level), filling in prefix and parameter path."""

    def __init__(self, layer: int | None, prefix: str = TEXT_PREFIX) -> None:
        self.layer, self.prefix = layer, prefix
        self.path = "" if layer is None else f"model.layers.{layer}."
        self.specs: list[TensorSpec] = []

    def __call__(self, suffix: str, group: Group, *shape: int, dtype: Dtype = "BF16") -> None:
        path = self.path + suffix
        self.specs.append(TensorSpec(self.prefix + path, shape, dtype, path, group, self.layer))

    def expert(self, suffix: str, parameter: str, dtype: Dtype, experts: int, *shape: int) -> None:
        path = f"{self.path}block_sparse_moe.experts."
        name = f"{self.prefix}{path}{{e}}.{suffix}"
        self.specs.append(TensorSpec(name, shape, dtype, path + parameter, "routed_experts", self.layer, experts))


def _attn_res(make: _Maker, width: int) -> None:
    for sublayer in ("self_attention", "mlp"):
        make(f"{sublayer}_res_norm.weight", "attn_res", width)
        make(f"{sublayer}_res_proj.weight", "attn_res", 1, width)


def _mtp(make: _Maker, config: K3Config) -> None:
    width = config.hidden_size
    make("enorm.weight", "mtp", width)
    make("hnorm.weight", "mtp", width)
    make("eh_proj.weight", "mtp", width, 2 * width)
    make("shared_head.norm.weight", "mtp", width)


def _kda(make: _Maker, config: K3Config) -> None:
    kda, width, attn = config.kda, config.hidden_size, "self_attn."
    for name in ("q", "k", "v"):
        make(f"{attn}{name}_conv1d.weight", "kda", kda.width, 1, kda.short_conv_kernel_size, dtype="F32")
    make(attn + "A_log", "kda", kda.head_dim, dtype="F32")
    make(attn + "dt_bias", "kda", kda.width, dtype="F32")
    make(attn + "o_norm.weight", "kda", kda.head_dim, dtype="F32")
    for name in ("q", "k", "v", "g"):
        make(f"{attn}{name}_proj.weight", "kda", kda.width, width)
    make(attn + "o_proj.weight", "kda", width, kda.width)
    make(attn + "b_proj.weight", "kda", kda.num_heads, width)
    make(attn + "f_a_proj.weight", "kda", kda.head_dim, width)
    make(attn + "f_b_proj.weight", "kda", kda.width, kda.head_dim)


def _mla(make: _Maker, config: K3Config) -> None:
    mla, width, attn = config.mla, config.hidden_size, "self_attn."
    value_width = mla.num_heads * mla.v_head_dim
    make(attn + "q_a_proj.weight", "mla", mla.q_lora_rank, width)
    make(attn + "q_a_layernorm.weight", "mla", mla.q_lora_rank)
    make(attn + "q_b_proj.weight", "mla", mla.num_heads * mla.qk_head_dim, mla.q_lora_rank)
    make(attn + "kv_a_proj_with_mqa.weight", "mla", mla.cache_width, width)
    make(attn + "kv_a_layernorm.weight", "mla", mla.kv_lora_rank)
    make(attn + "kv_b_proj.weight", "mla", mla.num_heads * (mla.qk_nope_head_dim + mla.v_head_dim), mla.kv_lora_rank)
    make(attn + "g_proj.weight", "mla", value_width, width)
    make(attn + "o_proj.weight", "mla", width, value_width)


def _moe(make: _Maker, config: K3Config) -> None:
    moe, width, where = config.moe, config.hidden_size, "block_sparse_moe."
    make(where + "gate.weight", "router", moe.num_experts, width)
    make(where + "gate.e_score_correction_bias", "router", moe.num_experts, dtype="F32")
    make(where + "routed_expert_down_proj.weight", "latent", moe.latent_size, width)
    make(where + "routed_expert_norm.weight", "latent", moe.latent_size)
    make(where + "routed_expert_up_proj.weight", "latent", width, moe.latent_size)
    if moe.num_shared_experts:
        _glu(make, where + "shared_experts.", "shared_experts", width, moe.shared_intermediate_size)
    for matrix in ("w1", "w2", "w3"):
        rows, columns = (
            (moe.latent_size, moe.intermediate_size) if matrix == "w2" else (moe.intermediate_size, moe.latent_size)
        )
        if config.quantized_experts:
            make.expert(f"{matrix}.weight_packed", f"{matrix}_packed", "U8", moe.num_experts, rows, columns // 2)
            make.expert(f"{matrix}.weight_scale", f"{matrix}_scale", "U8", moe.num_experts, rows, columns // MX_BLOCK)
        else:
            make.expert(f"{matrix}.weight", matrix, "BF16", moe.num_experts, rows, columns)


def _glu(make: _Maker, where: str, group: Group, width: int, inner: int) -> None:
    make(where + "gate_proj.weight", group, inner, width)
    make(where + "up_proj.weight", group, inner, width)
    make(where + "down_proj.weight", group, width, inner)


def _vision_block(make: _Maker, where: str, vision: VisionConfig) -> None:
    width, inner = vision.hidden_size, vision.intermediate_size
    make(where + "norm0.weight", "vision_tower", width)
    make(where + "norm1.weight", "vision_tower", width)
    make(where + "wqkv.weight", "vision_tower", 3 * vision.qkv_hidden_size, width)
    make(where + "wo.weight", "vision_tower", width, vision.qkv_hidden_size)
    make(where + "mlp.fc0.weight", "vision_tower", inner, width)
    make(where + "mlp.fc1.weight", "vision_tower", width, inner)

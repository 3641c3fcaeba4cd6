"""The model's configuration: frozen sizes, validated once.

Layers are zero-based here; the 1-based lists of the published file stay in ``published.py``.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Literal

from openk3.errors import ConfigError

LayerKind = Literal["kda", "mla"]


@dataclass(frozen=True, kw_only=True)
class KDAConfig:
    """Sizes of the Kimi Delta Attention layers (key and value dimension are both ``head_dim``)."""

    num_heads: int
    head_dim: int
    short_conv_kernel_size: int = 4
    gate_lower_bound: float = -5.0

    @property
    def width(self) -> int:
        """Channels of q, k, v and of the output gate: ``num_heads * head_dim``."""
        return self.num_heads * self.head_dim


@dataclass(frozen=True, kw_only=True)
class MLAConfig:
    """Sizes of the gated multi-head latent attention layers (no rotary embedding anywhere)."""

    num_heads: int
    q_lora_rank: int
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    low_rank_norm_eps: float = 1e-6

    @property
    def qk_head_dim(self) -> int:
        """Width of one head's query and key: the latent part and the shared unrotated part."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    @property
    def cache_width(self) -> int:
        """Values cached per token and layer: normalised latent, then the shared key part."""
        return self.kv_lora_rank + self.qk_rope_head_dim


@dataclass(frozen=True, kw_only=True)
class MoEConfig:
    """Sizes of the latent mixture of experts."""

    num_experts: int
    num_experts_per_token: int
    num_shared_experts: int
    intermediate_size: int
    latent_size: int
    renormalize: bool = True
    routed_scaling_factor: float = 1.0

    @property
    def shared_intermediate_size(self) -> int:
        """Width of the one MLP that realises all shared experts."""
        return self.num_shared_experts * self.intermediate_size


@dataclass(frozen=True, kw_only=True)
class VisionConfig:
    """Sizes of the vision tower and projector, as far as parameter counts need them."""

    patch_size: int = 14
    hidden_size: int = 1024
    num_hidden_layers: int = 27
    num_attention_heads: int = 12
    intermediate_size: int = 4096
    qkv_hidden_size: int = 1536
    init_pos_emb_height: int = 64
    init_pos_emb_width: int = 64
    merge_kernel_size: tuple[int, int] = (2, 2)


@dataclass(frozen=True, kw_only=True)
class K3Config:
    """A whole K3-architecture text model (and the sizes of its vision part, if it declares one)."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layer_kinds: tuple[LayerKind, ...]
    kda: KDAConfig
    mla: MLAConfig
    moe: MoEConfig
    first_k_dense_replace: int = 1
    moe_layer_freq: int = 1
    attn_res_block_size: int = 12
    situ_beta: float = 4.0
    situ_linear_beta: float = 25.0
    rms_norm_eps: float = 1e-5
    initializer_range: float = 0.02
    max_position_embeddings: int = 1_048_576
    num_nextn_predict_layers: int = 0
    bos_token_id: int
    eos_token_id: int
    pad_token_id: int
    media_placeholder_token_id: int | None = None
    quantized_experts: bool = True
    vision: VisionConfig | None = None

    def __post_init__(self) -> None:
        _validate(self)

    @property
    def num_hidden_layers(self) -> int:
        """Backbone layers, without MTP layers."""
        return len(self.layer_kinds)

    @cached_property
    def kda_layers(self) -> tuple[int, ...]:
        """Zero-based indices of the KDA layers."""
        return tuple(i for i, kind in enumerate(self.layer_kinds) if kind == "kda")

    @cached_property
    def mla_layers(self) -> tuple[int, ...]:
        """Zero-based indices of the backbone's MLA layers (without MTP)."""
        return tuple(i for i, kind in enumerate(self.layer_kinds) if kind == "mla")

    @property
    def mtp_layers(self) -> range:
        """Indices of the MTP layers, which follow the backbone and are always MLA with MoE."""
        return range(self.num_hidden_layers, self.num_hidden_layers + self.num_nextn_predict_layers)

    def is_moe(self, layer: int) -> bool:
        """Whether zero-based ``layer`` has experts (else the dense MLP); MTP layers always have."""
        return layer in self.mtp_layers or (layer >= self.first_k_dense_replace and layer % self.moe_layer_freq == 0)

    def starts_block(self, layer: int) -> bool:
        """Whether zero-based ``layer`` opens an attention-residual block (counted in whole layers)."""
        return layer % self.attn_res_block_size == 0


def _validate(config: K3Config) -> None:
    for part in (config, config.kda, config.mla, config.moe, *([config.vision] if config.vision else [])):
        _validate_sizes(part)
    moe, kda = config.moe, config.kda
    if not config.layer_kinds:
        raise ConfigError("num_hidden_layers is 0, expected at least 1")
    if moe.num_experts_per_token > moe.num_experts:
        raise ConfigError(
            f"num_experts_per_token is {moe.num_experts_per_token}, expected at most num_experts ({moe.num_experts})"
        )
    if not -5.0 <= kda.gate_lower_bound < 0.0:
        raise ConfigError(
            f"linear_attn_config.gate_lower_bound is {kda.gate_lower_bound}, expected -5 <= bound < 0: "
            "the chunked form's exponents are only safe within it"
        )
    if kda.num_heads > kda.head_dim:
        raise ConfigError(
            f"linear_attn_config.num_heads is {kda.num_heads}, expected at most head_dim "
            f"({kda.head_dim}): A_log is stored with head_dim entries"
        )
    if config.quantized_experts and (moe.latent_size % 32 or moe.intermediate_size % 32):
        raise ConfigError(
            f"routed_expert_hidden_size {moe.latent_size} and moe_intermediate_size "
            f"{moe.intermediate_size} must be multiples of 32 for MXFP4 experts"
        )
    for name in ("bos_token_id", "eos_token_id", "pad_token_id", "media_placeholder_token_id"):
        value = getattr(config, name)
        if value is not None and (
            isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < config.vocab_size
        ):
            raise ConfigError(f"{name} is {value!r}, expected an id below vocab_size ({config.vocab_size})")


# Far beyond any model; a larger number is damage, and would be counted out tensor by tensor.
MAX_LAYERS = 10_000
_MOST = {"num_experts": 100_000, "num_hidden_layers": MAX_LAYERS, "num_nextn_predict_layers": MAX_LAYERS}
_LARGEST_SIZE = 2**40

_MAY_BE_ZERO = frozenset(
    {
        "first_k_dense_replace",
        "num_nextn_predict_layers",
        "qk_rope_head_dim",
        "num_shared_experts",
        "bos_token_id",
        "eos_token_id",
        "pad_token_id",
        "media_placeholder_token_id",
    }
)


def _validate_sizes(part: Any) -> None:
    for field in fields(part):
        value = getattr(part, field.name)
        if isinstance(value, bool) or not isinstance(value, int | float) or field.name == "gate_lower_bound":
            continue
        least = 0 if field.name in _MAY_BE_ZERO else 1 if isinstance(value, int) else 0.0
        most = _MOST.get(field.name, _LARGEST_SIZE)
        if value > most and isinstance(value, int):
            raise ConfigError(f"{field.name} is {value!r:.40}, expected at most {most}")
        too_small = value < least or (isinstance(value, float) and not 0.0 < value < float("inf"))
        if too_small:
            raise ConfigError(
                f"{field.name} is {value}, expected at least {least}"
                if isinstance(value, int)
                else f"{field.name} is {value}, expected a positive finite number"
            )

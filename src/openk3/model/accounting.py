"""What a model costs, from its configuration alone: parameters, bytes, active parameters, state, cache, FLOPs.

Unusual: stored sizes are counted, so the zero tail of ``A_log`` is a parameter here as it is in published totals.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import prod
from typing import Any

from openk3.model.catalogue import TensorSpec, catalogue, layer_specs
from openk3.model.config import K3Config, LayerKind

STATE_ITEM_SIZE = 4
ACTIVATION_ITEM_SIZE = 2
CHUNK = 64
_RECURRENCE_FLOPS_PER_STATE_ELEMENT = 7
_MIX_FLOPS_PER_CHANNEL = 6


@dataclass(frozen=True)
class Size:
    """Counted tensors: how many, their parameters (4-bit codes count one each, scales none), their bytes on disk."""

    tensors: int = 0
    parameters: int = 0
    bytes: int = 0

    def __add__(self, other: Size) -> Size:
        return Size(self.tensors + other.tensors, self.parameters + other.parameters, self.bytes + other.bytes)


@dataclass(frozen=True)
class LayerCost:
    """One kind of layer: how many there are, and what each one costs."""

    attention: LayerKind
    ffn: str
    mtp: bool
    count: int
    size: Size
    active_parameters: int
    macs_per_token: int
    recurrent_state_bytes: int
    conv_state_bytes: int
    cache_bytes_per_token: int


@dataclass(frozen=True)
class Flops:
    """Floating-point operations (two per multiply-add) of the backbone."""

    linear_per_token: int
    kda_step_per_token: int
    kda_chunk_per_token: int
    attn_res_per_token: int
    decode_per_context_token: int
    prefill_per_query_key_pair: int

    @property
    def per_token(self) -> int:
        """One decoding step without the part that grows with the context."""
        return self.linear_per_token + self.kda_step_per_token + self.attn_res_per_token


@dataclass(frozen=True)
class Accounting:
    """The cost of a whole model; ``active_parameters`` counts the head but not the embedding look-up, nor MTP."""

    total: Size
    text: Size
    groups: dict[str, Size]
    layers: tuple[LayerCost, ...]
    active_parameters: int
    bytes_read_per_token: int
    recurrent_state_bytes: int
    conv_state_bytes: int
    cache_bytes_per_token: int
    flops: Flops

    @property
    def state_bytes_per_sequence(self) -> int:
        """Bytes that one sequence keeps whatever its length: FP32 recurrent state and BF16 convolution inputs."""
        return self.recurrent_state_bytes + self.conv_state_bytes

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON, with the derived totals included."""
        totals = {"parameters": self.total.parameters, "bytes": self.total.bytes}
        return (
            totals
            | asdict(self)
            | {
                "state_bytes_per_sequence": self.state_bytes_per_sequence,
                "flops": asdict(self.flops) | {"per_token": self.flops.per_token},
            }
        )


def account(config: K3Config, *, vision: bool = True) -> Accounting:
    """Account for a model; ``vision`` counts the vision tower and projector where the configuration has them."""
    specs = catalogue(config, vision=vision)
    layers = _layer_costs(config)
    backbone = [layer for layer in layers if not layer.mtp]
    text = [spec for spec in specs if spec.group not in ("vision_tower", "mm_projector")]
    read = [spec for spec in text if spec.group != "embedding" and spec.layer not in config.mtp_layers]
    return Accounting(
        total=_size(specs),
        text=_size(text),
        groups=_groups(specs),
        layers=layers,
        active_parameters=sum(_active(spec, config).parameters for spec in read),
        bytes_read_per_token=sum(_active(spec, config).bytes for spec in read),
        recurrent_state_bytes=sum(layer.count * layer.recurrent_state_bytes for layer in backbone),
        conv_state_bytes=sum(layer.count * layer.conv_state_bytes for layer in backbone),
        cache_bytes_per_token=sum(layer.count * layer.cache_bytes_per_token for layer in backbone),
        flops=_flops(config, backbone),
    )


def attn_res_reads(config: K3Config) -> int:
    """Count the sources read per token by all residual mixes; a mix of one source is the identity and reads none."""
    block = config.attn_res_block_size
    attention = sum(-(-layer // block) + 1 for layer in range(1, config.num_hidden_layers))
    mlp = sum(layer // block + 2 for layer in range(config.num_hidden_layers))
    return attention + mlp + -(-config.num_hidden_layers // block) + 1


def _size(specs: list[TensorSpec]) -> Size:
    return sum((_size_of(spec, spec.experts) for spec in specs), Size())


def _size_of(spec: TensorSpec, copies: int) -> Size:
    codes_per_item = 0 if spec.parameter.endswith("_scale") else 2 if spec.dtype == "U8" else 1
    return Size(copies, copies * codes_per_item * prod(spec.shape), copies * spec.nbytes)


def _active(spec: TensorSpec, config: K3Config) -> Size:
    return _size_of(spec, config.moe.num_experts_per_token if spec.per_expert else spec.experts)


def _groups(specs: list[TensorSpec]) -> dict[str, Size]:
    groups: dict[str, Size] = {}
    for spec in specs:
        groups[spec.group] = groups.get(spec.group, Size()) + _size_of(spec, spec.experts)
    return groups


def _layer_costs(config: K3Config) -> tuple[LayerCost, ...]:
    members: dict[tuple[LayerKind, str, bool], list[int]] = {}
    for layer in (*range(config.num_hidden_layers), *config.mtp_layers):
        mtp = layer in config.mtp_layers
        kind: LayerKind = "mla" if mtp else config.layer_kinds[layer]
        members.setdefault((kind, "moe" if config.is_moe(layer) else "dense", mtp), []).append(layer)
    return tuple(_layer_cost(config, *key, layers) for key, layers in members.items())


def _layer_cost(config: K3Config, kind: LayerKind, ffn: str, mtp: bool, layers: list[int]) -> LayerCost:
    specs = layer_specs(config, layers[0])
    active = [(spec, _active(spec, config).parameters) for spec in specs]
    kda = config.kda
    return LayerCost(
        attention=kind,
        ffn=ffn,
        mtp=mtp,
        count=len(layers),
        size=_size(specs),
        active_parameters=sum(parameters for _, parameters in active),
        macs_per_token=sum(parameters for spec, parameters in active if _multiplies(spec)),
        recurrent_state_bytes=kda.width * kda.head_dim * STATE_ITEM_SIZE if kind == "kda" else 0,
        conv_state_bytes=3 * kda.width * (kda.short_conv_kernel_size - 1) * ACTIVATION_ITEM_SIZE
        if kind == "kda"
        else 0,
        cache_bytes_per_token=config.mla.cache_width * ACTIVATION_ITEM_SIZE if kind == "mla" else 0,
    )


def _multiplies(spec: TensorSpec) -> bool:
    """Whether each parameter is one multiply-add per token: matrices and convolutions, not norms or mixes."""
    return len(spec.shape) > 1 and spec.group not in ("attn_res", "embedding")


def _flops(config: K3Config, backbone: list[LayerCost]) -> Flops:
    kda, mla = config.kda, config.mla
    macs = sum(layer.count * layer.macs_per_token for layer in backbone) + config.vocab_size * config.hidden_size
    state = len(config.kda_layers) * kda.width * kda.head_dim
    chunk = 6 * kda.head_dim**2 + 2 * CHUNK * 5 * kda.head_dim
    heads = len(config.mla_layers) * mla.num_heads
    return Flops(
        linear_per_token=2 * macs,
        kda_step_per_token=_RECURRENCE_FLOPS_PER_STATE_ELEMENT * state,
        kda_chunk_per_token=len(config.kda_layers) * kda.num_heads * chunk,
        attn_res_per_token=attn_res_reads(config) * _MIX_FLOPS_PER_CHANNEL * config.hidden_size,
        decode_per_context_token=2 * heads * (mla.cache_width + mla.kv_lora_rank),
        prefill_per_query_key_pair=2 * heads * (mla.qk_head_dim + mla.v_head_dim),
    )

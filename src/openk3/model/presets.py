"""Named model sizes: the published one, test sizes that each exercise something, and two for measuring.

Unusual: a name fixes sizes only; weights come from ``openk3 init`` or from a checkpoint.
"""

from __future__ import annotations

import difflib
from dataclasses import replace
from functools import cache
from typing import TypedDict

from openk3.errors import ConfigError
from openk3.model.config import K3Config, KDAConfig, LayerKind, MLAConfig, MoEConfig, VisionConfig

PURPOSES = {
    "one": "the layer-0 path alone: one KDA layer with the dense MLP",
    "mini4": "all features in the smallest form",
    "tail9": "two latent attention layers in a row at the end, a last block of one layer",
    "k128": "real head sizes: K = V = 128, 576-wide cache entry",
    "route896": "the real number of experts and choices",
    "prop8": "roughly the real proportions, three MX blocks per row",
    "mtp5": "mini4 with one multi-token-prediction layer",
    "mid": "1.1 billion parameters in 0.9 GB, for measuring on one machine",
    "slice": "four layers of the published widths with 32 experts: 6.1 billion parameters in 7.6 GB",
    "k3": "the published Kimi K3",
}
PRESETS = tuple(PURPOSES)


def preset(name: str) -> K3Config:
    """Return the configuration called ``name``; raise `ConfigError` with the nearest name if there is none."""
    if name not in PURPOSES:
        near = difflib.get_close_matches(name, PRESETS, n=1)
        raise ConfigError(
            f"{name!r} is not a preset, expected one of {', '.join(PRESETS)}",
            hint=f"did you mean `{near[0]}`?" if near else None,
        )
    return _presets()[name]


def _kinds(layers: int, *full: int) -> tuple[LayerKind, ...]:
    """Layer kinds from the 1-based numbers of the full-attention layers."""
    return tuple("mla" if number in full else "kda" for number in range(1, layers + 1))


class _Vocabulary(TypedDict):
    vocab_size: int
    bos_token_id: int
    eos_token_id: int
    pad_token_id: int
    media_placeholder_token_id: int


def _ids(vocab_size: int) -> _Vocabulary:
    return {
        "vocab_size": vocab_size,
        "bos_token_id": vocab_size - 16,
        "eos_token_id": vocab_size - 14,
        "pad_token_id": vocab_size - 1,
        "media_placeholder_token_id": vocab_size - 3,
    }


def _special_block(vocab_size: int) -> _Vocabulary:
    """Ids of the published block of 256 special tokens at the end of a vocabulary."""
    first = vocab_size - 256
    return {
        "vocab_size": vocab_size,
        "bos_token_id": first,
        "eos_token_id": first + 2,
        "pad_token_id": first + 255,
        "media_placeholder_token_id": first + 21,
    }


def _kda(heads: int, dim: int) -> KDAConfig:
    return KDAConfig(num_heads=heads, head_dim=dim)


def _mla(heads: int, nope: int, rope: int, value: int, q_rank: int, kv_rank: int) -> MLAConfig:
    return MLAConfig(
        num_heads=heads,
        qk_nope_head_dim=nope,
        qk_rope_head_dim=rope,
        v_head_dim=value,
        q_lora_rank=q_rank,
        kv_lora_rank=kv_rank,
    )


def _moe(latent: int, width: int, experts: int, chosen: int) -> MoEConfig:
    return MoEConfig(
        latent_size=latent,
        intermediate_size=width,
        num_experts=experts,
        num_experts_per_token=chosen,
        num_shared_experts=2,
    )


@cache
def _presets() -> dict[str, K3Config]:
    mini4 = K3Config(
        hidden_size=64,
        intermediate_size=96,
        layer_kinds=_kinds(4, 4),
        kda=_kda(3, 16),
        mla=_mla(2, 16, 8, 16, 24, 32),
        moe=_moe(32, 32, 8, 2),
        attn_res_block_size=2,
        **_ids(256),
    )
    k3 = K3Config(
        hidden_size=7168,
        intermediate_size=33792,
        layer_kinds=_kinds(93, *range(4, 93, 4), 93),
        kda=_kda(96, 128),
        mla=_mla(96, 128, 64, 128, 1536, 512),
        moe=_moe(3584, 3072, 896, 16),
        attn_res_block_size=12,
        vision=VisionConfig(),
        **_special_block(163_840),
    )
    return {
        "one": replace(mini4, layer_kinds=_kinds(1), attn_res_block_size=12),
        "mini4": mini4,
        "tail9": replace(mini4, layer_kinds=_kinds(9, 4, 8, 9), moe=_moe(32, 32, 16, 4), attn_res_block_size=4),
        "k128": replace(
            mini4,
            hidden_size=256,
            intermediate_size=384,
            kda=_kda(2, 128),
            mla=_mla(2, 128, 64, 128, 96, 512),
            moe=_moe(128, 96, 16, 4),
            **_ids(512),
        ),
        "route896": replace(mini4, layer_kinds=_kinds(3, 3), moe=_moe(32, 32, 896, 16), attn_res_block_size=12),
        "prop8": replace(
            mini4,
            hidden_size=192,
            intermediate_size=896,
            layer_kinds=_kinds(8, 4, 8),
            kda=_kda(6, 32),
            mla=_mla(6, 32, 16, 32, 48, 64),
            moe=_moe(96, 96, 32, 2),
            attn_res_block_size=4,
            **_ids(1024),
        ),
        "mtp5": replace(mini4, num_nextn_predict_layers=1),
        "mid": K3Config(
            hidden_size=1024,
            intermediate_size=4096,
            layer_kinds=_kinds(13, 4, 8, 12, 13),
            kda=_kda(8, 128),
            mla=_mla(8, 128, 64, 128, 384, 256),
            moe=_moe(512, 768, 64, 8),
            attn_res_block_size=4,
            **_special_block(32_768),
        ),
        "slice": replace(
            k3,
            layer_kinds=_kinds(4, 4),
            moe=_moe(3584, 3072, 32, 16),
            attn_res_block_size=2,
            vision=None,
            **_special_block(8192),
        ),
        "k3": k3,
    }

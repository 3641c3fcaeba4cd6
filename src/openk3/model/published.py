"""Reading and writing the published ``config.json``.

Unusual: its layer lists are 1-based, ``quantization_config`` is nested in ``text_config``, and it carries a hundred
library defaults without meaning. Those are known here by name; any other unknown key is an error.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from openk3.errors import ConfigError
from openk3.model.config import MAX_LAYERS, K3Config, KDAConfig, LayerKind, MLAConfig, MoEConfig, VisionConfig
from openk3.model.fields import get_field, reject_unknown, require_fixed, require_mapping
from openk3.model.quantization_config import are_experts_quantized, quantization_dict

_ARCHITECTURE = "KimiK3ForConditionalGeneration"
_TEXT_ARCHITECTURE = "KimiLinearForCausalLM"
# one field under its new and its old name; stored dtypes are fixed tensor by tensor, so no other can be honoured
_FIXED_DTYPE = {"dtype": "bfloat16", "torch_dtype": "bfloat16"}

# Fields whose only honoured value is the published one: another value would change the computation.
_FIXED_TOP = {
    "architectures": [_ARCHITECTURE],
    "model_type": "kimi_k3",
    "tie_word_embeddings": False,
}
_FIXED_TEXT = {
    "architectures": [_TEXT_ARCHITECTURE],
    "model_type": "kimi_linear",
    "hidden_act": "situ",
    "latent_moe_use_norm": True,
    "moe_router_activation_func": "sigmoid",
    "topk_method": "noaux_tc",
    "num_expert_group": 1,
    "topk_group": 1,
    "mla_use_nope": True,
    "mla_use_output_gate": True,
    "tie_word_embeddings": False,
}
_FIXED_LINEAR = {"use_full_rank_gate": True}

# Library defaults without meaning for the model (spec: published config.json), and bookkeeping.
_IGNORED_TEXT = frozenset(
    """_name_or_path add_cross_attention auto_map bad_words_ids begin_suppress_tokens
    chunk_size_feed_forward cross_attention_hidden_size decoder_start_token_id diversity_penalty do_sample
    early_stopping encoder_no_repeat_ngram_size exponential_decay_length_penalty finetuning_task
    forced_bos_token_id forced_eos_token_id id2label is_decoder is_encoder_decoder label2id length_penalty
    max_length min_length no_repeat_ngram_size num_beam_groups num_beams num_return_sequences
    output_attentions output_hidden_states output_scores prefix problem_type pruned_heads
    remove_invalid_values repetition_penalty return_dict return_dict_in_generate sep_token_id
    suppress_tokens task_specific_params temperature tf_legacy_loss tie_encoder_decoder tokenizer_class top_k
    top_p torchscript transformers_version typical_p use_bfloat16 use_cache use_grouped_topk""".split()
)
_READ_TEXT = frozenset(
    """vocab_size hidden_size num_hidden_layers num_attention_heads num_key_value_heads intermediate_size
    first_k_dense_replace moe_layer_freq num_experts num_experts_per_token num_shared_experts
    moe_intermediate_size routed_expert_hidden_size moe_renormalize routed_scaling_factor
    activation_situ_beta activation_situ_linear_beta attn_res_block_size q_lora_rank kv_lora_rank
    qk_nope_head_dim qk_rope_head_dim v_head_dim low_rank_norm_eps linear_attn_config rms_norm_eps
    max_position_embeddings num_nextn_predict_layers initializer_range bos_token_id eos_token_id pad_token_id
    quantization_config""".split()
)
_READ_LINEAR = frozenset(
    "head_dim num_heads short_conv_kernel_size gate_lower_bound kda_layers full_attn_layers".split()
)
_KNOWN_TOP = frozenset(
    """architectures auto_map model_type dtype torch_dtype bos_token_id eos_token_id pad_token_id
    media_placeholder_token_id image_placeholder ignore_index tie_word_embeddings text_config vision_config
    transformers_version""".split()
)


def load_config(path: str | Path) -> K3Config:
    """Read ``config.json``, given as a file or as the folder that holds it; raise `ConfigError`."""
    file = Path(path)
    file = file / "config.json" if file.is_dir() else file
    if file.exists() and not file.is_file():
        raise ConfigError(f"{file}: not a regular file, expected JSON")  # a pipe would be waited for
    try:
        raw = json.loads(file.read_text(encoding="utf-8"), object_pairs_hook=_unique)
    except FileNotFoundError:
        raise ConfigError(f"{file}: no such file", hint="a model is a folder with a config.json") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{file}: cannot be read as JSON: {error}") from None
    try:
        return config_from_dict(raw)
    except ConfigError as error:
        raise ConfigError(f"{file}: {error.message}", hint=error.hint) from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make an object, whose keys JSON allows to repeat; which of them counted would be a guess."""
    names = Counter(name for name, _ in pairs)
    if len(names) < len(pairs):
        raise ValueError(f"{names.most_common(1)[0][0]!r:.80} stands twice in one object")
    return dict(pairs)


def config_from_dict(raw: Mapping[str, Any]) -> K3Config:
    """Read the published layout (nested ``text_config``); raise `ConfigError` naming field and value."""
    raw = require_mapping(raw, "config.json")
    if "text_config" not in raw:
        raise ConfigError("text_config is missing", hint="the published layout nests the language model in it")
    reject_unknown(raw, _KNOWN_TOP, "")
    require_fixed(raw, _FIXED_TOP | _FIXED_DTYPE, "")
    where = "text_config."
    text = require_mapping(raw["text_config"], "text_config")
    fixed = _FIXED_TEXT | _FIXED_DTYPE
    reject_unknown(text, _READ_TEXT | _IGNORED_TEXT | frozenset(fixed), where)
    require_fixed(text, fixed, where)
    linear = require_mapping(text.get("linear_attn_config"), where + "linear_attn_config")
    heads = get_field(text, "num_attention_heads", where, int)
    if text.get("num_key_value_heads", heads) != heads:
        value = text["num_key_value_heads"]
        raise ConfigError(
            f"{where}num_key_value_heads is {value!r}, but only num_attention_heads ({heads}) "
            "can be honoured: latent attention has no grouping"
        )
    return K3Config(
        vocab_size=get_field(text, "vocab_size", where, int),
        hidden_size=get_field(text, "hidden_size", where, int),
        intermediate_size=get_field(text, "intermediate_size", where, int),
        layer_kinds=_layer_kinds(linear, get_field(text, "num_hidden_layers", where, int)),
        kda=_kda(linear),
        mla=_mla(text, heads),
        moe=_moe(text),
        first_k_dense_replace=get_field(text, "first_k_dense_replace", where, int, 1),
        moe_layer_freq=get_field(text, "moe_layer_freq", where, int, 1),
        attn_res_block_size=get_field(text, "attn_res_block_size", where, int),
        situ_beta=get_field(text, "activation_situ_beta", where, float),
        situ_linear_beta=get_field(text, "activation_situ_linear_beta", where, float),
        rms_norm_eps=get_field(text, "rms_norm_eps", where, float),
        initializer_range=get_field(text, "initializer_range", where, float, 0.02),
        max_position_embeddings=get_field(text, "max_position_embeddings", where, int, 1_048_576),
        num_nextn_predict_layers=get_field(text, "num_nextn_predict_layers", where, int, 0),
        bos_token_id=_token_id(raw, text, "bos_token_id"),
        eos_token_id=_token_id(raw, text, "eos_token_id"),
        pad_token_id=_token_id(raw, text, "pad_token_id"),
        media_placeholder_token_id=raw.get("media_placeholder_token_id"),
        quantized_experts=are_experts_quantized(text.get("quantization_config")),
        vision=_vision(raw.get("vision_config")),
    )


def _token_id(raw: Mapping[str, Any], text: Mapping[str, Any], key: str) -> int:
    top, nested = raw.get(key), text.get(key)
    if top is not None and nested is not None and top != nested:
        raise ConfigError(
            f"{key} is {top!r:.40}, but text_config.{key} is {nested!r:.40}",
            hint="which of them counts would be a guess; make them equal, or remove one",
        )
    source, where = (text, "text_config.") if top is None else (raw, "")
    return int(get_field(source, key, where, int))


def _layer_kinds(linear: Mapping[str, Any], num_layers: int) -> tuple[LayerKind, ...]:
    where = "text_config.linear_attn_config."
    kda, full = get_field(linear, "kda_layers", where, list), get_field(linear, "full_attn_layers", where, list)
    if not 1 <= num_layers <= MAX_LAYERS:  # before a list as long as that is made
        raise ConfigError(f"text_config.num_hidden_layers is {num_layers!r:.40}, expected 1 to {MAX_LAYERS}")
    for name, numbers in (("kda_layers", kda), ("full_attn_layers", full)):
        bad = [n for n in numbers if isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= num_layers]
        if bad:
            raise ConfigError(f"{where}{name} holds {bad[0]!r}, expected 1-based layer numbers up to {num_layers}")
    if sorted(kda + full) != list(range(1, num_layers + 1)):
        both, none = set(kda) & set(full), set(range(1, num_layers + 1)) - set(kda) - set(full)
        twice = both or {n for n, count in Counter(kda + full).items() if count > 1}
        fault = f"layers {sorted(twice)[:8]} are named twice" if twice else f"layers {sorted(none)[:8]} are in neither"
        raise ConfigError(f"{where}kda_layers and full_attn_layers do not partition 1..{num_layers}: {fault}")
    return tuple("kda" if n in set(kda) else "mla" for n in range(1, num_layers + 1))


def _kda(linear: Mapping[str, Any]) -> KDAConfig:
    where = "text_config.linear_attn_config."
    reject_unknown(linear, _READ_LINEAR | frozenset(_FIXED_LINEAR), where)
    require_fixed(linear, _FIXED_LINEAR, where)
    return KDAConfig(
        num_heads=get_field(linear, "num_heads", where, int),
        head_dim=get_field(linear, "head_dim", where, int),
        short_conv_kernel_size=get_field(linear, "short_conv_kernel_size", where, int),
        gate_lower_bound=get_field(linear, "gate_lower_bound", where, float),
    )


def _mla(text: Mapping[str, Any], heads: int) -> MLAConfig:
    where = "text_config."
    names = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    sizes = {name: get_field(text, name, where, int) for name in names}
    eps = get_field(text, "low_rank_norm_eps", where, float, 1e-6)
    return MLAConfig(num_heads=heads, low_rank_norm_eps=eps, **sizes)


def _moe(text: Mapping[str, Any]) -> MoEConfig:
    where = "text_config."
    return MoEConfig(
        num_experts=get_field(text, "num_experts", where, int),
        num_experts_per_token=get_field(text, "num_experts_per_token", where, int),
        num_shared_experts=get_field(text, "num_shared_experts", where, int),
        intermediate_size=get_field(text, "moe_intermediate_size", where, int),
        latent_size=get_field(text, "routed_expert_hidden_size", where, int),
        renormalize=get_field(text, "moe_renormalize", where, bool, True),
        routed_scaling_factor=get_field(text, "routed_scaling_factor", where, float, 1.0),
    )


_VISION_NAMES = {
    "patch_size": "patch_size",
    "vt_hidden_size": "hidden_size",
    "vt_num_hidden_layers": "num_hidden_layers",
    "vt_num_attention_heads": "num_attention_heads",
    "vt_intermediate_size": "intermediate_size",
    "qkv_hidden_size": "qkv_hidden_size",
    "init_pos_emb_height": "init_pos_emb_height",
    "init_pos_emb_width": "init_pos_emb_width",
}


def _vision(raw: Any) -> VisionConfig | None:
    if raw is None:
        return None
    raw = require_mapping(raw, "vision_config")
    sizes = {
        ours: get_field(raw, theirs, "vision_config.", int) for theirs, ours in _VISION_NAMES.items() if theirs in raw
    }
    merge = raw.get("merge_kernel_size", [2, 2])
    if not isinstance(merge, list) or len(merge) != 2 or not all(type(n) is int and n > 0 for n in merge):
        raise ConfigError(f"vision_config.merge_kernel_size is {merge!r}, expected two positive numbers")
    return VisionConfig(merge_kernel_size=(merge[0], merge[1]), **sizes)


def config_to_dict(config: K3Config) -> dict[str, Any]:
    """Write the published layout, such that `config_from_dict` gives the same configuration back."""
    ids = {name: getattr(config, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    top: dict[str, Any] = {
        **_FIXED_TOP,
        "dtype": "bfloat16",
        "ignore_index": -100,
        "image_placeholder": "<|kimi_image_placeholder|>",
        "media_placeholder_token_id": config.media_placeholder_token_id,
        **ids,
        "text_config": {"dtype": "bfloat16", **ids, **_text_dict(config)},
    }
    if config.vision is not None:
        top["vision_config"] = _vision_dict(config.vision, config.hidden_size)
    return top


def _text_dict(config: K3Config) -> dict[str, Any]:
    moe, mla, kda = config.moe, config.mla, config.kda
    text = {
        **_FIXED_TEXT,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_hidden_layers,
        "num_attention_heads": mla.num_heads,
        "num_key_value_heads": mla.num_heads,
        "intermediate_size": config.intermediate_size,
        "first_k_dense_replace": config.first_k_dense_replace,
        "moe_layer_freq": config.moe_layer_freq,
        "num_experts": moe.num_experts,
        "num_experts_per_token": moe.num_experts_per_token,
        "num_shared_experts": moe.num_shared_experts,
        "moe_intermediate_size": moe.intermediate_size,
        "routed_expert_hidden_size": moe.latent_size,
        "moe_renormalize": moe.renormalize,
        "routed_scaling_factor": moe.routed_scaling_factor,
        "use_grouped_topk": True,
        "activation_situ_beta": config.situ_beta,
        "activation_situ_linear_beta": config.situ_linear_beta,
        "attn_res_block_size": config.attn_res_block_size,
        "q_lora_rank": mla.q_lora_rank,
        "kv_lora_rank": mla.kv_lora_rank,
        "qk_nope_head_dim": mla.qk_nope_head_dim,
        "qk_rope_head_dim": mla.qk_rope_head_dim,
        "v_head_dim": mla.v_head_dim,
        "linear_attn_config": {
            **_FIXED_LINEAR,
            "head_dim": kda.head_dim,
            "num_heads": kda.num_heads,
            "short_conv_kernel_size": kda.short_conv_kernel_size,
            "gate_lower_bound": kda.gate_lower_bound,
            "kda_layers": [i + 1 for i in config.kda_layers],
            "full_attn_layers": [i + 1 for i in config.mla_layers],
        },
        "rms_norm_eps": config.rms_norm_eps,
        "initializer_range": config.initializer_range,
        "max_position_embeddings": config.max_position_embeddings,
        "num_nextn_predict_layers": config.num_nextn_predict_layers,
        "use_cache": True,
    }
    if mla.low_rank_norm_eps != 1e-6:
        text["low_rank_norm_eps"] = mla.low_rank_norm_eps
    if config.quantized_experts:
        text["quantization_config"] = quantization_dict()
    return text


def _vision_dict(vision: VisionConfig, text_hidden_size: int) -> dict[str, Any]:
    return {
        **{theirs: getattr(vision, ours) for theirs, ours in _VISION_NAMES.items()},
        "merge_kernel_size": list(vision.merge_kernel_size),
        "mm_hidden_size": vision.hidden_size,
        "text_hidden_size": text_hidden_size,
        "activation_func": "gelu_pytorch_tanh",
        "attn_bias": False,
        "init_pos_emb_time": 4,
        "linear_bias": False,
        "merge_type": "sd2_tpool",
        "mlp_type": "mlp2",
        "mm_projector_type": "patchmergerv2",
        "norm_type": "rmsnorm",
        "patch_embed_proj_bias": False,
        "pos_emb_interpolation_mode": "bilinear",
        "pos_emb_type": "divided_fixed",
        "projector_hidden_act": "gelu",
        "projector_ln_eps": 1e-5,
    }

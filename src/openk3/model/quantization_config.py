"""The ``quantization_config`` of the published ``config.json``: routed experts stored as MXFP4, or nothing.

Unusual: it can say much, of which one thing can be honoured. Every field that would change what the stored bytes mean
is fixed; only the lists of modules, which are unreliable, and what was observed while quantising may differ.
"""

from __future__ import annotations

from typing import Any

from openk3.errors import ConfigError
from openk3.model.fields import reject_unknown, require_fixed, require_mapping

_FORMAT = "mxfp4-pack-quantized"
_FIXED = {
    "format": _FORMAT,
    "kv_cache_scheme": None,
    "quant_method": "compressed-tensors",
    "quantization_status": "compressed",
}
_FIXED_GROUP = {"format": _FORMAT, "input_activations": None, "output_activations": None}
_FIXED_WEIGHTS: dict[str, Any] = {
    "actorder": None,
    "block_structure": None,
    "dynamic": False,
    "group_size": 32,
    "num_bits": 4,
    "scale_dtype": "torch.uint8",
    "strategy": "group",
    "symmetric": True,
    "type": "float",
    "zp_dtype": None,
}
# of no consequence for stored weights
_FREE = {"global_compression_ratio", "ignore"}
_FREE_GROUP = {"targets"}
_FREE_WEIGHTS = {"observer", "observer_kwargs"}
# the library that defines these fields has other defaults for them
_REQUIRED = ("quant_method", "format", "config_groups")
_REQUIRED_WEIGHTS = ("num_bits", "type", "group_size")


def are_experts_quantized(raw: Any) -> bool:
    """Say whether ``quantization_config`` has the experts stored as MXFP4; raise `ConfigError` if as anything else."""
    if raw is None:
        return False
    where = "text_config.quantization_config"
    quant = require_mapping(raw, where)
    _require_only(quant, _FIXED, _FREE | {"config_groups"}, _REQUIRED, where + ".")
    groups = require_mapping(quant["config_groups"], where + ".config_groups")
    if len(groups) != 1:
        raise ConfigError(f"{where}.config_groups has the groups {sorted(groups)!r:.80}, expected exactly one")
    for name, value in groups.items():
        inside = f"{where}.config_groups.{name}"
        group = require_mapping(value, inside)
        _require_only(group, _FIXED_GROUP, _FREE_GROUP | {"weights"}, ("weights",), inside + ".")
        weights = require_mapping(group["weights"], inside + ".weights")
        _require_only(weights, _FIXED_WEIGHTS, _FREE_WEIGHTS, _REQUIRED_WEIGHTS, inside + ".weights.")
    return True


def _require_only(raw: Any, fixed: dict[str, Any], free: set[str], required: tuple[str, ...], where: str) -> None:
    reject_unknown(raw, frozenset(fixed) | free, where)
    for key in required:
        if key not in raw:
            raise ConfigError(f"{where}{key} is missing", hint="take it from the published config")
    require_fixed(raw, fixed, where)


def quantization_dict() -> dict[str, Any]:
    """Return the published ``quantization_config`` of a model whose experts are stored as MXFP4."""
    weights = {**_FIXED_WEIGHTS, "observer": "minmax", "observer_kwargs": {}}
    group = {**_FIXED_GROUP, "targets": ["Linear"], "weights": weights}
    return {
        **_FIXED,
        "config_groups": {"group_0": group},
        "global_compression_ratio": None,
        "ignore": [
            "re:.*self_attn.*",
            "re:.*shared_experts.*",
            "re:.*mlp\\.(gate|up|gate_up|down)_proj.*",
            "re:.*lm_head.*",
            "re:.*vision_tower.*",
            "re:.*mm_projector.*",
        ],
    }

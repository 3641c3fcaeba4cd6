"""``openk3 info``: what a model is, from its configuration; and with ``--system``, what this machine runs it with."""

from __future__ import annotations

import json as json_format
from pathlib import Path
from typing import Any

from openk3.checkpoint.index import read_index
from openk3.checkpoint.names import VISION_ROOTS
from openk3.checkpoint.resolve import resolve_model
from openk3.cli.errors import UsageError
from openk3.cli.table import bytes_text, table
from openk3.errors import CheckpointError
from openk3.model.accounting import Accounting, LayerCost, Size, account
from openk3.model.config import K3Config
from openk3.model.licence import licence_terms
from openk3.model.presets import PRESETS, PURPOSES, preset
from openk3.model.published import load_config


def info(model: str | None = None, /, *, json: bool = False, system: bool = False) -> None:
    """Show what a model is: parameters, bytes, active parameters, state and cache sizes.

    Parameters
    ----------
    model
        A folder in the published layout, a bundled name (nano), or a preset such as k3, the published model.
    json
        Print one JSON object instead of tables.
    system
        Show what this machine computes with: versions, threads, forms of the operations.
    """
    if (model is None) == (not system):
        raise UsageError("info takes either MODEL or --system", hint="try `openk3 info k3`")
    data, text = _system() if model is None else _model(model)
    print(json_format.dumps(data, indent=2) if json else text)


def _model(name: str) -> tuple[dict[str, Any], str]:
    config, origin, vision = _find(name)
    cost = account(config, vision=vision)
    head = {
        "name": name,
        "origin": origin,
        "num_hidden_layers": config.num_hidden_layers,
        "hidden_size": config.hidden_size,
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.max_position_embeddings,
        "experts": "mxfp4" if config.quantized_experts else "bf16",
        "vision": vision,
    }
    return head | cost.to_dict(), _text(name, origin, config, cost)


def _find(name: str) -> tuple[K3Config, str, bool]:
    """Return a model's configuration, where it comes from, and whether it has a vision part."""
    if name in PRESETS and not Path(name).is_dir():
        config = preset(name)
        return config, f"preset: {PURPOSES[name]}", config.vision is not None
    folder = resolve_model(name)
    config = load_config(folder)
    try:
        index = read_index(folder)
    except CheckpointError as error:
        return config, f"{folder} ({error.message.removeprefix(f'{folder}: ')})", config.vision is not None
    has_vision = any(each.startswith(VISION_ROOTS) for each in index.weight_map)
    return config, f"{folder} ({len(index.files)} files)", has_vision and config.vision is not None


def _text(name: str, origin: str, config: K3Config, cost: Accounting) -> str:
    parts = [
        f"{name}: {origin}",
        table(_totals(config, cost), left=2),
        table(_group_rows(cost)),
        table(_layer_rows(cost)),
    ]
    if terms := licence_terms(config):
        parts.append("\n".join(terms))
    return "\n\n".join(parts)


def _totals(config: K3Config, cost: Accounting) -> list[tuple[str, str]]:
    flops, context = cost.flops, config.max_position_embeddings
    cache = cost.cache_bytes_per_token
    return [
        ("parameters", f"{cost.total.parameters:,}"),
        ("  active per token", f"{cost.active_parameters:,}"),
        ("bytes on disk", f"{cost.total.bytes:,} ({bytes_text(cost.total.bytes)}, {cost.total.tensors:,} tensors)"),
        ("  read per token, batch 1", f"{cost.bytes_read_per_token:,}"),
        (
            "state per sequence",
            f"{cost.recurrent_state_bytes:,} + {cost.conv_state_bytes:,} B (recurrent FP32, convolution BF16)",
        ),
        ("cache per token", f"{cache:,} B (latent BF16; {bytes_text(cache * context)} for {context:,} tokens)"),
        ("FLOP per token", f"{flops.per_token:,} ({flops.linear_per_token:,} in matrices)"),
        ("  per token of context", f"{flops.decode_per_context_token:,}"),
        ("vocabulary, context", f"{config.vocab_size:,}, {context:,}"),
    ]


def _group_rows(cost: Accounting) -> list[tuple[str, ...]]:
    return [
        ("part", "tensors", "parameters", "bytes"),
        *(_size_row(*item) for item in cost.groups.items()),
        _size_row("total", cost.total),
    ]


def _size_row(name: str, size: Size) -> tuple[str, ...]:
    return name.replace("_", " "), f"{size.tensors:,}", f"{size.parameters:,}", f"{size.bytes:,}"


def _layer_rows(cost: Accounting) -> list[tuple[str, ...]]:
    header = ("layers", "count", "parameters", "active", "bytes", "MAC per token", "state B", "cache B per token")
    return [header, *(_layer_row(layer) for layer in cost.layers)]


def _layer_row(layer: LayerCost) -> tuple[str, ...]:
    numbers = (
        layer.count,
        layer.size.parameters,
        layer.active_parameters,
        layer.size.bytes,
        layer.macs_per_token,
        layer.recurrent_state_bytes + layer.conv_state_bytes,
        layer.cache_bytes_per_token,
    )
    name = f"{layer.attention} + {layer.ffn}" + (" (MTP)" if layer.mtp else "")
    return name, *(f"{number:,}" for number in numbers)


def _system() -> tuple[dict[str, Any], str]:
    from openk3.cli.system import describe_system

    data = describe_system()
    rows = [
        (key.replace("_", " "), ", ".join(value) if isinstance(value, list) else str(value))
        for key, value in data.items()
        if not isinstance(value, dict)
    ]
    operations = [(name, ", ".join(forms)) for name, forms in data["operations"].items()]
    chosen = [(name, form) for name, form in data["in_use"].items()]
    tables = [
        table(part, left=2)
        for part in (rows, [("operation", "forms there are"), *operations], [("choice", "in use"), *chosen])
    ]
    return data, "\n\n".join(tables)

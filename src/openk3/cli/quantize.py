"""``openk3 quantize``: the same model with its routed experts stored in another format."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from openk3.checkpoint.index import INDEX_FILE
from openk3.checkpoint.resolve import resolve_model
from openk3.cli.progress import Progress
from openk3.cli.terminal import note
from openk3.model.accounting import account
from openk3.model.published import load_config


def quantize(source: str, target: Path, /, *, experts: Literal["mxfp4", "bf16"]) -> None:
    """Change the format of a model's expert weights.

    The other weights and files are copied as they are. MXFP4 to BF16 is exact; BF16 to MXFP4 prints what it loses.

    Parameters
    ----------
    source
        A folder in the published layout, or a bundled name: nano.
    target
        Where to; made if it does not exist, and must not hold weights.
    experts
        The format to write: mxfp4 (4-bit, what Kimi K3 is published in) or bf16.
    """
    from openk3.checkpoint.convert import convert_experts

    folder = resolve_model(source)
    others = _other_files(folder)
    before = account(load_config(folder), vision=False).text
    with Progress(f"writing {experts}", _size_as(folder, experts)) as progress:
        error = convert_experts(folder, target, experts, companions=others, progress=progress)
    for name in others:
        note(f"copied {name}")
    after = account(load_config(target), vision=False).text
    print(f"{target}: experts as {experts}, {after.bytes:,} bytes (were {before.bytes:,})")
    if error is not None:
        print(
            f"relative error of the experts: {error.relative:.3%} (root mean square), at most {error.worst:.3%} in "
            f"{error.worst_name}"
        )


def _size_as(folder: Path, experts: str) -> int:
    from dataclasses import replace

    return account(replace(load_config(folder), quantized_experts=experts == "mxfp4"), vision=False).text.bytes


def _other_files(folder: Path) -> dict[str, Path]:
    """List tokenizer, generation settings and the like."""
    left_out = (INDEX_FILE, "config.json")
    files = (path for path in sorted(folder.iterdir()) if path.is_file() and path.name not in left_out)
    return {path.name: path for path in files if not path.name.endswith((".safetensors", ".partial"))}

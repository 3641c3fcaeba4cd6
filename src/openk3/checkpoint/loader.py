"""From a checkpoint folder to a model in memory: every tensor placed once, names strict, bytes read once.

Unusual: what is read at any moment is one tensor, so the peak is what stays resident plus that; float32 parameters stay
float32 whatever the model's dtype; the zero tail of ``A_log`` is cut off after checking that it is zero.
"""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Literal

import torch

from openk3.checkpoint.index import Index, StoredTensor, read_index
from openk3.checkpoint.inventory import Inventory, Match
from openk3.checkpoint.progress import Progress
from openk3.checkpoint.reader import ShardReader
from openk3.errors import ConfigError, TensorError
from openk3.model.config import K3Config
from openk3.model.model import K3ForCausalLM, ModelOptions
from openk3.model.published import load_config
from openk3.ops.mxfp4.reference import unpack
from openk3.quant.experts import ExpertFormat

_FLOATS = ("BF16", "F32", "F16")


def load_model(
    path: str | Path,
    *,
    dtype: torch.dtype = torch.bfloat16,
    options: ModelOptions | None = None,
    experts: Literal["auto", "packed", "plain"] = "auto",
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
) -> K3ForCausalLM:
    """Load the text model of checkpoint folder ``path``; ``progress`` hears each shard's name and bytes when read.

    ``experts``: ``packed`` keeps MXFP4 bytes and expands them as needed, ``plain`` expands all to ``dtype`` now, and
    ``auto`` keeps what the file has.

    Raises:
        ConfigError: ``config.json`` cannot be honoured, or packed experts are asked of unquantised ones.
        CheckpointError: the files are not a whole, well-formed checkpoint of that configuration.
    """
    folder = Path(path)
    config = load_config(folder)
    index = read_index(folder)
    shards = [ShardReader(folder / file) for file in index.files]
    matches = _match_all(config, index, shards)
    with torch.device(device):
        model = K3ForCausalLM(config, dtype=dtype, options=options, experts=_format(config, experts))
    filler = _Filler(model, shards, matches)
    for shard in shards:
        filler.fill(shard)
        if progress is not None:
            progress(shard.header.path.name, shard.header.file_size)
    filler.compare_copies()
    return model.eval()


def _format(config: K3Config, experts: str) -> ExpertFormat:
    if experts == "packed" and not config.quantized_experts:
        raise ConfigError(
            "experts='packed' was asked of a model whose experts are stored unquantised",
            hint="convert it with `openk3 quantize SRC DST --experts mxfp4`",
        )
    if experts == "packed" or (experts == "auto" and config.quantized_experts):
        return "packed"
    return "plain"


def _match_all(config: K3Config, index: Index, shards: list[ShardReader]) -> dict[str, Match]:
    """Match every stored tensor before a byte of data is read; raise `TensorError` with the first that is wrong."""
    inventory = Inventory(config, index.weight_map)
    matches = {}
    for shard in shards:
        for name in shard.header.tensors:
            try:
                matches[name] = inventory.match(name)
                _require_size(shard.stored(name), matches[name])
            except TensorError as error:
                raise TensorError(f"{shard.header.path}: {error.message}") from None
    for name in inventory.missing():
        raise TensorError(
            f"{index.folder}: {name}: missing from every shard", hint="`openk3 verify` lists everything that is wrong"
        )
    return matches


def _require_size(stored: StoredTensor, match: Match) -> None:
    """Refuse a tensor of another size before a model of that size is made; its exact shape is judged in its place."""
    if prod(stored.shape) != prod(match.spec.shape) and not match.spec.parameter.endswith(".A_log"):
        raise TensorError(f"{stored.name}: shape is {list(stored.shape)}, expected {list(match.spec.shape)}")


class _Filler:
    """Copies stored tensors into a model's parameters and buffers."""

    def __init__(self, model: K3ForCausalLM, shards: list[ShardReader], matches: dict[str, Match]) -> None:
        self._targets = dict(model.named_parameters()) | dict(model.named_buffers())
        self._dtype = model.dtype
        self._matches = matches
        self._shard_of = {name: shard for shard in shards for name in shard.header.tensors}

    @torch.no_grad()
    def fill(self, shard: ShardReader) -> None:
        """Read the tensors of ``shard`` in the order of the file."""
        for stored in sorted(shard.header.tensors.values(), key=lambda stored: stored.begin):
            match = self._matches[stored.name]
            if match.is_copy or (match.spec.layer is None and match.spec.parameter == match.spec.name):
                continue  # copies are compared at the end; the vision part is not this model's
            if match.spec.parameter in self._targets:
                self._place(shard, stored, match)
            elif match.spec.parameter.endswith("_packed"):
                self._expand(shard, stored, match)

    @torch.no_grad()
    def compare_copies(self) -> None:
        """Require that copies which MTP layers carry equal the backbone's; raise `TensorError` otherwise."""
        for name, match in self._matches.items():
            if match.is_copy:
                original = self._targets[match.spec.parameter]
                with self._shard_of[name].lend(name) as view:
                    if not torch.equal(view.to(original), original):
                        raise TensorError(
                            f"{self._where(name)}differs from {match.spec.parameter}, which it should copy",
                            hint="a separate embedding or head of an MTP layer is not supported",
                        )

    def _place(self, shard: ShardReader, stored: StoredTensor, match: Match) -> None:
        target = self._targets[match.spec.parameter]
        target = target[match.expert] if match.spec.per_expert else target
        if (stored.dtype == "U8") != (match.spec.dtype == "U8") or stored.dtype not in (*_FLOATS, "U8"):
            raise TensorError(f"{self._where(stored.name)}dtype is {stored.dtype}, expected {match.spec.dtype}")
        with shard.lend(stored.name) as view:
            target.copy_(self._fitted(view, target, match))

    def _expand(self, shard: ShardReader, stored: StoredTensor, match: Match) -> None:
        """Dequantise one expert's matrix into the stack of plain ones."""
        scale_name = stored.name.removesuffix("packed") + "scale"
        target = self._targets[match.spec.parameter.removesuffix("_packed")][match.expert]
        with shard.lend(stored.name) as packed, self._shard_of[scale_name].lend(scale_name) as scale:
            if packed.shape != match.spec.shape or scale.shape != self._matches[scale_name].spec.shape:
                raise TensorError(
                    f"{self._where(stored.name)}shapes are {list(packed.shape)} and {list(scale.shape)}, "
                    f"expected {list(match.spec.shape)} and {list(self._matches[scale_name].spec.shape)}"
                )
            target.copy_(unpack(packed, scale, self._dtype))

    def _fitted(self, view: torch.Tensor, target: torch.Tensor, match: Match) -> torch.Tensor:
        if match.spec.parameter.endswith(".A_log"):
            return self._without_tail(view, target.shape[0], match.spec.name)
        # older checkpoints drop the middle axis of the convolutions' [P, 1, taps]
        if match.spec.parameter.endswith("_conv1d.weight") and view.ndim == 2:
            view = view.unsqueeze(1)
        if view.shape != target.shape:
            raise TensorError(
                f"{self._where(match.spec.name_of(match.expert))}shape is {list(view.shape)}, "
                f"expected {list(match.spec.shape)}"
            )
        return view

    def _without_tail(self, view: torch.Tensor, heads: int, name: str) -> torch.Tensor:
        flat = view.flatten()  # older checkpoints store [1, 1, H, 1]
        if view.numel() != max(view.shape) or len(flat) < heads:
            raise TensorError(f"{self._where(name)}shape is {list(view.shape)}, expected at least {heads} values")
        if flat[heads:].any():
            raise TensorError(
                f"{self._where(name)}the padding after its {heads} heads is not zero",
                hint="the values may belong to another layout: one per channel is not one per head",
            )
        return flat[:heads]

    def _where(self, name: str) -> str:
        return f"{self._shard_of[name].header.path}: {name}: "

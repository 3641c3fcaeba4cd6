"""The KDA states of running sequences: one slot each, all layers, and the checkpoint that every slot contains.

Unusual: a slot stands at any token, and the state at the last multiple of 16 is always in it, with the convolution
inputs of that point. A checkpoint is a copy of those two, whenever it is wanted.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from openk3.engine.cache.identity import CHUNK
from openk3.errors import EngineError
from openk3.model.config import K3Config
from openk3.model.state import kda_shapes
from openk3.ops.precision import wide_dtype


class StateSlots:
    """``num_slots`` states; layers are counted among the KDA layers. Slots are zeroed when they are taken."""

    def __init__(
        self, config: K3Config, num_slots: int, dtype: torch.dtype, device: torch.device | str = "cpu"
    ) -> None:
        shapes, layers, wide = kda_shapes(config), len(config.kda_layers), wide_dtype(dtype)
        self.index = {layer: i for i, layer in enumerate(config.kda_layers)}
        self.recurrent = torch.zeros(layers, num_slots, *shapes.recurrent, dtype=wide, device=device)
        self.opened = torch.zeros(layers, num_slots, *shapes.opened, dtype=wide, device=device)
        self.conv = torch.zeros(layers, num_slots, *shapes.conv, dtype=dtype, device=device)
        self.chunk_conv = torch.zeros_like(self.conv)  # as `conv`, at the position of `recurrent`
        self.num_slots = num_slots
        self._free = list(range(num_slots - 1, -1, -1))

    @property
    def num_free(self) -> int:
        """Slots that no sequence has."""
        return len(self._free)

    def take(self) -> int:
        """Return a slot at position 0; EngineError if there is none."""
        if not self._free:
            raise EngineError("no state slot is free")
        slot = self._free.pop()
        for states in (self.recurrent, self.opened, self.conv, self.chunk_conv):
            states[:, slot] = 0
        return slot

    def give_back(self, slot: int) -> None:
        """Free a slot."""
        if slot in self._free:
            raise EngineError(f"slot {slot} was given back twice")
        self._free.append(slot)

    def checkpoint(self, slot: int) -> Tensor:
        """Return a copy of the state at the slot's last multiple of 16, [checkpoint_bytes] uint8."""
        parts = (self.recurrent[:, slot], self.chunk_conv[:, slot])
        return torch.cat([part.contiguous().view(torch.uint8).flatten() for part in parts])

    def is_finite(self, slot: int) -> bool:
        """Tell whether the state at the slot's last multiple of 16 holds numbers only."""
        return bool(self.recurrent[:, slot].isfinite().all() and self.chunk_conv[:, slot].isfinite().all())

    def restore(self, slot: int, checkpoint: Tensor) -> None:
        """Put a fresh slot at a checkpoint, a multiple of 16 tokens."""
        cut = self.recurrent[:, slot].numel() * self.recurrent.dtype.itemsize
        self.recurrent[:, slot] = checkpoint[:cut].clone().view(self.recurrent.dtype).view_as(self.recurrent[:, slot])
        conv = checkpoint[cut:].clone().view(self.conv.dtype).view_as(self.conv[:, slot])
        self.conv[:, slot] = conv
        self.chunk_conv[:, slot] = conv


def checkpoint_bytes(config: K3Config, dtype: torch.dtype) -> int:
    """Return the size of one checkpoint's state, without latents."""
    shapes = kda_shapes(config)
    layer = math.prod(shapes.recurrent) * wide_dtype(dtype).itemsize + math.prod(shapes.conv) * dtype.itemsize
    return len(config.kda_layers) * layer


def slot_bytes(config: K3Config, dtype: torch.dtype) -> int:
    """Return the size of one slot."""
    shapes = kda_shapes(config)
    wide = (math.prod(shapes.recurrent) + math.prod(shapes.opened)) * wide_dtype(dtype).itemsize
    return len(config.kda_layers) * (wide + 2 * math.prod(shapes.conv) * dtype.itemsize)


def last_chunk_start(position: int) -> int:
    """Return the last multiple of 16 at or below ``position``."""
    return position // CHUNK * CHUNK

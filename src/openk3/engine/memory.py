"""How the memory is divided: weights, activations of a step, state slots, and the rest in blocks for everything cached.

Unusual: the activations are bounded by formula before anything runs, so that an engine either starts and stays within
its memory or says at once, in a table, what would not fit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from openk3.engine.cache.prefix import DEFAULT_MAX_SIGHTINGS, SIGHTING_BYTES
from openk3.engine.config import EngineConfig
from openk3.engine.sizes import available_memory, format_size
from openk3.engine.slots import checkpoint_bytes, slot_bytes
from openk3.errors import CapacityError
from openk3.model.config import K3Config
from openk3.model.state import kda_shapes
from openk3.ops.mla.blocks import MOST_KEYS, MOST_SCORES
from openk3.ops.precision import wide_dtype

# An engine that could not hold even so many tokens is of no use.
_FEWEST_TOKENS = 1024
# Of what weights and activations leave, state slots take at most this part.
_SLOTS_SHARE = 0.5
# Temporaries live side by side in an order that the formula does not follow, and allocators round up.
_SLACK = 1.5


@dataclass(frozen=True)
class MemoryPlan:
    """Slots and blocks, and ``parts``: bytes by what they are for, which add up to ``total`` within ``budget``."""

    num_slots: int
    num_blocks: int
    block_bytes: int
    parts: tuple[tuple[str, int], ...] = ()
    budget: int = 0

    @classmethod
    def of_blocks(cls, *, num_slots: int, num_blocks: int, block_bytes: int) -> MemoryPlan:
        """Make a plan of given numbers, without a budget."""
        return cls(num_slots, num_blocks, block_bytes, (("caches", num_blocks * block_bytes),))

    @property
    def total(self) -> int:
        """Bytes of all parts."""
        return sum(size for _, size in self.parts)

    def table(self) -> str:
        """Return the parts in lines, with total and budget."""
        rows = [*self.parts, ("total", self.total), ("budget", self.budget)]
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"  {name.ljust(width)}  {format_size(size):>9}" for name, size in rows)


def plan_memory(
    config: K3Config,
    engine: EngineConfig,
    *,
    dtype: torch.dtype,
    weight_bytes: int,
    draft_weight_bytes: int = 0,
    draft_bytes_per_token: int = 0,
    draft_bytes_per_sequence: int = 0,
    draft_model: tuple[K3Config, torch.dtype] | None = None,
    budget: int | None = None,
) -> MemoryPlan:
    """Divide ``budget`` bytes (None: the weights and half of what is free now) for a model of ``config`` in ``dtype``.

    Drafts are given room for as many tokens as the blocks hold; ``draft_model`` is a second model's config and dtype.

    Raises:
        CapacityError: it is too little; the message has the table of the least that is needed.
    """
    if budget is None:
        budget = weight_bytes + draft_weight_bytes + available_memory() // 2
    steps = [_Step(config, engine, dtype)]
    if draft_model is not None:  # its passes come before the model's own, never beside it
        portion = replace(engine, token_budget=draft_portion(engine), speculate="off")
        steps.append(_Step(draft_model[0], portion, draft_model[1]))
    block = _block_bytes(config, engine, dtype)
    fixed = [
        ("weights", weight_bytes),
        ("draft model's weights", draft_weight_bytes),
        ("a step", max(step.fixed_bytes for step in steps)),
    ]
    if engine.prefix_cache:
        fixed.append(("names of prefixes", DEFAULT_MAX_SIGHTINGS * SIGHTING_BYTES))
    per_slot = {
        "state slots": slot_bytes(config, dtype),
        "rows of a step": max(step.bytes_per_sequence for step in steps),
        "drafts": draft_bytes_per_sequence,
    }
    per_block = block + draft_bytes_per_token * engine.page_size + max(step.bytes_per_block for step in steps)
    left = budget - sum(size for _, size in fixed)
    fewest = _fewest_blocks(config, engine, dtype)
    of_slot = sum(per_slot.values())
    slots = min(int(left * _SLOTS_SHARE) // of_slot, (left - fewest * per_block) // of_slot, engine.max_running)
    slots = max(slots, 1)
    blocks = (left - slots * of_slot) // per_block
    plan = MemoryPlan(
        num_slots=slots,
        num_blocks=max(blocks, fewest),
        block_bytes=block,
        parts=tuple(
            (name, size)
            for name, size in (
                *fixed,
                *((name, slots * size) for name, size in per_slot.items()),
                ("pages and checkpoints", max(blocks, fewest) * per_block),
            )
            if size
        ),
        budget=budget,
    )
    if blocks < fewest:
        raise CapacityError(
            f"the memory of {format_size(budget)} is too small; "
            f"at least {format_size(plan.total, up=True)} are needed:\n"
            f"{plan.table()}",
            hint="give more memory, allow fewer running requests or a smaller token budget, or use a smaller model",
        )
    return plan


def draft_portion(engine: EngineConfig) -> int:
    """Return the most tokens that a draft model reads in one pass, of all sequences together."""
    return min(512, engine.token_budget)


def _block_bytes(config: K3Config, engine: EngineConfig, dtype: torch.dtype) -> int:
    """Return the bytes of a page of latents; a model without MLA layers has none, and blocks of any size do."""
    page = len(config.mla_layers) * engine.page_size * config.mla.cache_width * dtype.itemsize
    return -(-max(page, 4096) // 64) * 64


def _fewest_blocks(config: K3Config, engine: EngineConfig, dtype: torch.dtype) -> int:
    """Return the blocks of one useful sequence and its checkpoint."""
    pages = -(-min(_FEWEST_TOKENS, config.max_position_embeddings) // engine.page_size)
    state = -(-checkpoint_bytes(config, dtype) // _block_bytes(config, engine, dtype)) if engine.prefix_cache else 0
    return pages + state


class _Step:
    """Upper bounds of a forward pass's temporaries, in bytes."""

    def __init__(self, config: K3Config, engine: EngineConfig, dtype: torch.dtype) -> None:
        self._config, self._dtype = config, dtype
        self._narrow, self._wide = dtype.itemsize, wide_dtype(dtype).itemsize
        self._tokens = engine.token_budget
        self._page_size = engine.page_size
        self._drafts = engine.speculate != "off"
        self._rows = 1 + engine.speculate_depth if self._drafts else 1

    @property
    def fixed_bytes(self) -> int:
        """Bytes that the token budget and the kernels' tiles take, however many sequences there are."""
        mla = self._config.mla
        attention = MOST_KEYS * mla.cache_width * (self._narrow + self._wide) + 3 * self._wide * MOST_SCORES
        held = self._tokens * self._held_per_token
        return held + int(_SLACK * (self._tokens * self._bytes_per_token + attention + self._expert_bytes))

    @property
    def bytes_per_sequence(self) -> int:
        """Bytes for each sequence of a step: its tokens, its last rows of logits, and its states of one layer."""
        logits = self._rows * self._config.vocab_size * (self._narrow + 2 * self._wide)
        kda = self._config.kda
        states = 4 * kda.width * kda.head_dim * self._wide
        chunks = 2 * 16 * self._kda_bytes
        held = self._rows * self._held_per_token + (len(self._config.kda_layers) * states // 4 if self._drafts else 0)
        return held + int(_SLACK * (self._rows * self._bytes_per_token + logits + states + chunks))

    @property
    def bytes_per_block(self) -> int:
        """Bytes of the copies that attention makes of one layer's latents, if one sequence has all blocks."""
        mla = self._config.mla
        copies = mla.cache_width * (self._narrow + self._wide) + 3 * self._wide * mla.num_heads
        return self._page_size * copies if len(self._config.mla_layers) else 0

    @property
    def _held_per_token(self) -> int:
        """Bytes of a token that all KDA layers hold until it is known which drafts were right."""
        if not self._drafts:
            return 0
        shapes = kda_shapes(self._config)
        return len(self._config.kda_layers) * (
            math.prod(shapes.opened[1:]) * self._wide + shapes.conv[1] * self._narrow
        )

    @property
    def _bytes_per_token(self) -> int:
        config = self._config
        moe, mla, narrow, wide = config.moe, config.mla, self._narrow, self._wide
        sources = len([i for i in range(config.num_hidden_layers) if config.starts_block(i)]) + 1
        residual = config.hidden_size * (sources * (narrow + wide) + 4 * narrow)
        attention = 4 * mla.num_heads * (mla.cache_width + mla.qk_head_dim + mla.v_head_dim) * wide
        experts = moe.num_experts_per_token * (moe.latent_size * (3 * narrow + 2 * wide))
        widest = max(config.intermediate_size, moe.shared_intermediate_size, moe.intermediate_size)
        return residual + max(attention, self._kda_bytes, experts + 4 * widest * wide)

    @property
    def _kda_bytes(self) -> int:
        """Bytes of one token in a KDA layer: queries, keys, values, decays, in and out of chunks."""
        return 20 * self._config.kda.width * self._wide

    @property
    def _expert_bytes(self) -> int:
        """Bytes of one expert's opened matrices."""
        return 6 * self._config.moe.latent_size * self._config.moe.intermediate_size * self._narrow

"""Drafts from a second, smaller model with the same vocabulary.

Unusual: it reads the text itself, a bounded portion in each step, so it needs nothing of what the model computed and
may come late to a long prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from openk3.engine.sequence import EngineSequence
from openk3.engine.slots import slot_bytes
from openk3.engine.speculative.drafter import ComputedRow
from openk3.errors import ConfigError
from openk3.model.config import K3Config
from openk3.model.model import K3ForCausalLM
from openk3.model.state import SequenceState
from openk3.ops.mla.blocks import KEY_BLOCK

# While a buffer of latents grows, the new one has up to twice the rows that are needed, and the old one is still there.
_GROWTH = 3


class DraftModelDrafter:
    """Drafts of ``draft_model`` for ``model``, which reads at most ``portion`` tokens in one pass.

    Raises:
        ConfigError: their vocabularies are not equally large.
    """

    def __init__(self, model: K3ForCausalLM, draft_model: K3ForCausalLM, max_depth: int, portion: int = 512) -> None:
        vocab, draft_vocab = model.config.vocab_size, draft_model.config.vocab_size
        if draft_vocab != vocab:
            raise ConfigError(
                f"the draft model's vocab_size is {draft_vocab}, expected the model's, {vocab}",
                hint="draft with a model that has the same tokenizer",
            )
        self.max_depth = max_depth
        self.bytes_per_token = _GROWTH * _latent_bytes(draft_model.config, draft_model.dtype)
        # The state, its mark while drafting, and one layer's copies, which are less than a state.
        states = 3 * slot_bytes(draft_model.config, draft_model.dtype)
        self.bytes_per_sequence = states + (max_depth + KEY_BLOCK) * self.bytes_per_token
        self._model, self._portion = draft_model, portion
        self._states: dict[EngineSequence, SequenceState] = {}

    @torch.inference_mode()
    def propose(self, sequences: Sequence[EngineSequence], depths: Sequence[int]) -> list[list[int]]:
        """Return for each sequence its depth of guesses, none before the draft model has read all of its tokens."""
        guesses: list[list[int]] = [[] for _ in sequences]
        drafts = [
            _Draft(sequence, self._state(sequence), min(depth, self.max_depth), guess)
            for sequence, depth, guess in zip(sequences, depths, guesses, strict=True)
            if depth > 0
        ]
        self._chain(self._caught_up(drafts))
        return guesses

    def computed(self, rows: Sequence[ComputedRow]) -> None:
        """Take note of nothing: `propose` sees all tokens."""

    def release(self, sequence: EngineSequence) -> None:
        """Drop the sequence's state; its tokens would be read again."""
        self._states.pop(sequence, None)

    def _state(self, sequence: EngineSequence) -> SequenceState:
        if sequence not in self._states:
            self._states[sequence] = self._model.new_state()
        return self._states[sequence]

    def _caught_up(self, drafts: Sequence[_Draft]) -> list[_Draft]:
        """Read a portion of what is missing, least first; return those that miss nothing, with their first guess."""
        left, portions = self._portion, []
        for draft in sorted(drafts, key=lambda draft: draft.num_missing):
            read = draft.state.num_tokens
            portion = draft.sequence.tokens[read : read + left]
            if portion:
                portions.append((draft, portion))
                left -= len(portion)
        self._read(portions)
        ready = [draft for draft, _ in portions if draft.num_missing == 0]
        for draft in ready:
            draft.guess()
        return ready

    def _chain(self, drafts: Sequence[_Draft]) -> None:
        """Add the further guesses, and take back what was read for them."""
        marks = [draft.state.mark() for draft in drafts]
        going_on = [draft for draft in drafts if draft.is_unfinished]
        while going_on:
            self._read([(draft, draft.guesses[-1:]) for draft in going_on])
            for draft in going_on:
                draft.guess()
            going_on = [draft for draft in going_on if draft.is_unfinished]
        for draft, mark in zip(drafts, marks, strict=True):
            draft.state.rewind(mark)

    def _read(self, portions: Sequence[tuple[_Draft, Sequence[int]]]) -> None:
        """Read tokens, and keep for each draft the logits [V] after the last one."""
        if not portions:
            return
        device = self._model.lm_head.weight.device
        ids = torch.tensor([token for _, tokens in portions for token in tokens], dtype=torch.int64, device=device)
        states = [draft.state for draft, _ in portions]
        logits = self._model(ids, [len(tokens) for _, tokens in portions], states, last_only=True)
        for (draft, _), row in zip(portions, logits.to("cpu", torch.float32), strict=True):
            draft.logits = row


@dataclass(eq=False)
class _Draft:
    """A chain of guesses in the making; ``logits`` [V] float32 (CPU) are of the next one."""

    sequence: EngineSequence
    state: SequenceState
    depth: int
    guesses: list[int]
    logits: Tensor | None = None

    @property
    def num_missing(self) -> int:
        """Tokens of the text that the draft model has not read."""
        return len(self.sequence.tokens) - self.state.num_tokens

    @property
    def is_unfinished(self) -> bool:
        """Whether another guess is wanted."""
        return len(self.guesses) < self.depth

    def guess(self) -> None:
        """Choose the next guess."""
        assert self.logits is not None
        self.guesses.append(self.sequence.sampler.guess(self.logits, len(self.guesses)))


def _latent_bytes(config: K3Config, dtype: torch.dtype) -> int:
    """Return the latents' bytes of one token."""
    return len(config.mla_layers) * config.mla.cache_width * dtype.itemsize

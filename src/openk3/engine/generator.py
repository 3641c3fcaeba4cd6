"""The simplest loop that generates: one sequence, prefill in chunks, then one token at a time.

Unusual: it is a seam. An engine that batches, pages and caches takes its place behind the same ``stream``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor

from openk3.errors import CapacityError, ConfigError
from openk3.model.config import K3Config
from openk3.model.state import SequenceState
from openk3.ops.sampling.reference import sample
from openk3.protocol.sampling import FinishReason, SamplingParams, TokenOutput

# Bounds the activations of a long prompt; the result does not depend on it.
PREFILL_CHUNK = 512


class LanguageModel(Protocol):
    """What the loop needs of a model; `openk3.model.model.K3ForCausalLM` is one."""

    @property
    def config(self) -> K3Config:
        """Sizes, of which the loop reads the vocabulary's and the context's."""

    def new_state(self) -> SequenceState:
        """Make the state of a sequence at position 0."""

    def __call__(
        self, input_ids: Tensor, lengths: Sequence[int], states: Sequence[SequenceState], *, last_only: bool
    ) -> Tensor:
        """Advance ``states`` by ``input_ids`` [sum(lengths)]; give the last tokens' logits [len(lengths), vocab]."""


class Generator:
    """Generate token ids with one model, one request at a time."""

    def __init__(
        self,
        model: LanguageModel,
        *,
        stop_token_ids: Collection[int] = (),
        prefill_chunk: int = PREFILL_CHUNK,
        device: torch.device | str = "cpu",
    ) -> None:
        self.model = model
        self.stop_token_ids = frozenset(stop_token_ids)
        self.prefill_chunk = prefill_chunk
        self.device = torch.device(device)

    def stream(self, prompt_ids: Sequence[int], params: SamplingParams) -> Iterator[TokenOutput]:
        """Generate after ``prompt_ids``, token by token; closing the iterator cancels.

        A stop token is the last output, with finish reason "stop"; at ``params.max_tokens`` or a full context it is
        "length". Raises `ConfigError` for an empty prompt or an id outside the vocabulary and `CapacityError` for a
        prompt that leaves no room, both before anything is computed; while iterating, `NumericsError` for logits that
        are not finite.
        """
        config = self.model.config
        _require_ids(prompt_ids, config.vocab_size)
        room = config.max_position_embeddings - len(prompt_ids)
        if room < 1:
            raise CapacityError(
                f"the prompt has {len(prompt_ids):,} tokens, expected fewer than the model's context of "
                f"{config.max_position_embeddings:,}",
                hint="shorten the prompt or start a new conversation",
            )
        limit = room if params.max_tokens is None else min(room, params.max_tokens)
        return self._generate(prompt_ids, params, limit)

    def _generate(self, prompt_ids: Sequence[int], params: SamplingParams, limit: int) -> Iterator[TokenOutput]:
        stop_ids = self.stop_token_ids.union(params.stop_token_ids)
        random = _random_numbers(params.seed)
        state = self.model.new_state()
        logits = self._prefill(prompt_ids, state)
        for count in range(1, limit + 1):
            token, logprob = sample(
                logits, temperature=params.temperature, top_p=params.top_p, top_k=params.top_k, generator=random
            )
            reason: FinishReason | None = "stop" if token in stop_ids else "length" if count == limit else None
            yield TokenOutput(token, logprob, reason)
            if reason is not None:
                return
            logits = self._advance([token], state)

    def _prefill(self, prompt_ids: Sequence[int], state: SequenceState) -> Tensor:
        for start in range(0, len(prompt_ids), self.prefill_chunk):
            logits = self._advance(prompt_ids[start : start + self.prefill_chunk], state)
        return logits

    def _advance(self, ids: Sequence[int], state: SequenceState) -> Tensor:
        # Entered anew for each call: a generator that is suspended inside it would leave its caller in this mode.
        with torch.inference_mode():
            input_ids = torch.tensor(ids, dtype=torch.int64, device=self.device)
            return self.model(input_ids, [len(ids)], [state], last_only=True)[0]


def _require_ids(ids: Sequence[int], vocab_size: int) -> None:
    if not ids:
        raise ConfigError("the prompt is empty, expected at least one token")
    for position, token in enumerate(ids):
        if not 0 <= token < vocab_size:
            raise ConfigError(
                f"prompt token {position} is {token}, expected an id from 0 to {vocab_size - 1}",
                hint="the tokenizer and the model do not belong together",
            )


def _random_numbers(seed: int | None) -> torch.Generator:
    generator = torch.Generator()
    if seed is None:
        generator.seed()
    else:
        generator.manual_seed(seed)
    return generator

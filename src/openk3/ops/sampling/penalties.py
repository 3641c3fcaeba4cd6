"""Penalties and bias of one sequence, kept up to date token by token; equal to the reference's to the last bit.

Unusual: only the logits of tokens that were seen or are biased are computed anew.

Legend: V vocabulary size.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from openk3.ops.sampling.reference import LARGEST, Ids, Row, Weights
from openk3.protocol.sampling import SamplingParams


class Penalties:
    """What was said so far, as far as ``params`` penalise it; ``is_neutral`` if they change no logit at all."""

    def __init__(self, params: SamplingParams, prompt_ids: Sequence[int], vocab_size: int) -> None:
        self._params = params
        self._repetition = params.repetition_penalty
        self._counts_matter = params.presence_penalty != 0.0 or params.frequency_penalty != 0.0
        self.is_neutral = self._repetition == 1.0 and not self._counts_matter and not params.logit_bias
        if self.is_neutral:
            return
        self._biased = np.array(sorted(params.logit_bias), dtype=np.int64)
        self._bias = np.array([params.logit_bias[token] for token in sorted(params.logit_bias)], dtype=np.float64)
        self._counts = np.zeros(vocab_size, dtype=np.int32)
        self._is_seen = np.zeros(vocab_size, dtype=np.bool_)
        if self._repetition != 1.0:
            self._is_seen[np.asarray(prompt_ids, dtype=np.int64)] = True
        self._is_changed = self._is_seen.copy()
        self._is_changed[self._biased] = True

    def append(self, token: int) -> None:
        """Count a generated ``token``."""
        if not self.is_neutral:
            self._counts[token] += 1
            self._is_seen[token] = self._is_changed[token] = True

    def adjust(self, logits: Row) -> Row:
        """Return the adjusted finite ``logits`` [V]; the same array if nothing changes."""
        if self.is_neutral:
            return logits
        ids = np.flatnonzero(self._is_changed)
        with np.errstate(over="ignore"):
            wide = self._penalise(logits[ids].astype(np.float64), ids)
            wide[np.searchsorted(ids, self._biased)] += self._bias
        adjusted = logits.copy()
        adjusted[ids] = wide.clip(-LARGEST, LARGEST)
        return adjusted

    def _penalise(self, wide: Weights, ids: Ids) -> Weights:
        if self._repetition != 1.0:
            repeated = np.where(wide > 0, wide / self._repetition, wide * self._repetition)
            wide = np.where(self._is_seen[ids], repeated, wide)
        if self._counts_matter:
            counts = self._counts[ids]
            penalties = self._params.presence_penalty + self._params.frequency_penalty * counts
            wide = np.where(counts > 0, wide - penalties, wide)
        return wide

"""From a row of logits to a token, for one sequence: what it was told, what it said, and its random numbers.

Unusual: a row knows nothing of the rows beside it. What is computed of it, even its sums, is computed of it alone.

Legend: R rows, V vocabulary size.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from openk3.errors import ConfigError, NumericsError
from openk3.ops.sampling.leading import leading, sample
from openk3.ops.sampling.penalties import Penalties
from openk3.ops.sampling.reference import Mask, Row, Weights, boltzmann
from openk3.ops.sampling.uniform import uniform
from openk3.protocol.sampling import SamplingParams


class LogitRow:
    """Logits ``values`` [V] (float32, CPU), whether they are finite, and the ``best`` token, the lowest of equals."""

    def __init__(self, values: Tensor) -> None:
        self.values = values
        self.array: Row = values.numpy()
        self.best = int(self.array.argmax())
        # The largest is NaN if any is.
        self.is_finite = math.isfinite(self.array[self.best]) and math.isfinite(self.array.min())
        self._logsumexp: float | None = None

    @property
    def logsumexp(self) -> float:
        """Natural logarithm of the sum of ``exp(values)``, summed in float64; NaN if they are not finite."""
        if not self.is_finite:
            return math.nan
        if self._logsumexp is None:
            self.exponentials()
            assert self._logsumexp is not None
        return self._logsumexp

    def exponentials(self) -> Weights:
        """Return ``exp(values - max)`` [V] in float64; the logarithm of their sum costs nothing more afterwards."""
        exponentials = boltzmann(self.array, 1.0)
        self._logsumexp = float(self.array[self.best]) + math.log(float(exponentials.sum()))
        return exponentials

    def logprob(self, token: int) -> float:
        """Return the log-probability of ``token`` under the model itself."""
        return float(self.array[token]) - self.logsumexp

    def likeliest(self, count: int) -> tuple[tuple[int, float], ...]:
        """Return the ``count`` most likely tokens with their log-probabilities, the likeliest first."""
        if count == 0:
            return ()
        return tuple((token, self.logprob(token)) for token in leading(self.array, count)[:count].tolist())


def logit_rows(logits: Tensor) -> list[LogitRow]:
    """Split ``logits`` [R, V] into rows that can be chosen from."""
    rows = logits.detach().to("cpu", torch.float32).contiguous()
    return [LogitRow(values) for values in rows.unbind()]


@dataclass(frozen=True, slots=True)
class Chosen:
    """A chosen token; ``logprob`` and the likeliest ``alternatives`` are the model's own, before any setting."""

    token_id: int
    logprob: float
    alternatives: tuple[tuple[int, float], ...]


class RowSampler:
    """Choose the tokens of one answer; raise `ConfigError` for ids that the vocabulary does not have.

    ``stop_token_ids`` end the answer: before ``params.min_tokens`` tokens they are not chosen.
    """

    def __init__(
        self, params: SamplingParams, prompt_ids: Sequence[int], stop_token_ids: Collection[int], vocab_size: int
    ) -> None:
        _require_ids("logit_bias", params.logit_bias, vocab_size)
        _require_ids("stop_token_ids", stop_token_ids, vocab_size)
        _require_ids("stop_token_ids", params.stop_token_ids, vocab_size)
        self._params = params
        self._stop_ids = sorted({*stop_token_ids, *params.stop_token_ids})
        self._penalties = Penalties(params, prompt_ids, vocab_size)
        self.seed = secrets.randbits(64) if params.seed is None else params.seed
        self.num_generated = 0

    def append(self, token: int) -> None:
        """Take the next token of the answer."""
        self._penalties.append(token)
        self.num_generated += 1

    def choose(self, row: LogitRow, allowed: Tensor | None = None) -> Chosen:
        """Choose the next token among the ``allowed`` [V] (bool, CPU); nothing changes until it is appended.

        Raises `NumericsError` if a logit is not finite and `ConfigError` if no token may be chosen.
        """
        if not row.is_finite:
            raise _not_finite(row.array)
        token = self._choose(row, self._possible(row.array.size, allowed))
        return Chosen(token, row.logprob(token), row.likeliest(self._params.top_logprobs))

    def guess(self, logits: Tensor, offset: int) -> int:
        """Choose from a draft's ``logits`` [V] as `choose` will from the model's, penalties, bias and masks left out.

        ``offset`` 0 is the token that `choose` chooses next. Logits that are not finite give a guess, never an error.
        """
        row = logit_rows(logits[None])[0]
        if not row.is_finite or self._params.temperature == 0.0:
            return row.best
        return sample(row.array, self._params, uniform(self.seed, self.num_generated + offset))

    def _choose(self, row: LogitRow, possible: Mask | None) -> int:
        values = self._penalties.adjust(row.array)
        if self._params.temperature == 0.0:
            best = row.best if values is row.array else int(values.argmax())
            if possible is None or possible[best]:
                return best
        if possible is not None:
            ids = np.flatnonzero(possible)
            return int(ids[self._draw(values[ids])])
        is_plain = values is row.array and self._params.temperature == 1.0
        return self._draw(values, row.exponentials() if is_plain else None)

    def _draw(self, values: Row, weights: Weights | None = None) -> int:
        if self._params.temperature == 0.0:
            return int(values.argmax())
        return sample(values, self._params, uniform(self.seed, self.num_generated), weights)

    def _possible(self, size: int, allowed: Tensor | None) -> Mask | None:
        must_go_on = self.num_generated < self._params.min_tokens and bool(self._stop_ids)
        if allowed is None and not must_go_on:
            return None
        possible: Mask = np.ones(size, dtype=np.bool_) if allowed is None else allowed.numpy()
        if must_go_on:
            possible = possible.copy()
            possible[self._stop_ids] = False
        if not possible.any():
            raise self._nothing_possible(allowed)
        return possible

    def _nothing_possible(self, allowed: Tensor | None) -> ConfigError:
        if allowed is not None and not bool(allowed.any()):
            return ConfigError("no token can be chosen: the grammar allows none here, expected at least one")
        return ConfigError(
            f"no token can be chosen: only stop tokens are possible after {self.num_generated} tokens, "
            f"but min_tokens is {self._params.min_tokens}",
            hint="lower min_tokens, or use a grammar whose shortest text has that many tokens",
        )


def _require_ids(name: str, ids: Collection[int], vocab_size: int) -> None:
    for token in ids:
        if not 0 <= token < vocab_size:
            raise ConfigError(f"{name} holds {token}, expected ids from 0 to {vocab_size - 1}")


def _not_finite(values: Row) -> NumericsError:
    wrong = np.flatnonzero(~np.isfinite(values))
    return NumericsError(
        f"{wrong.size} of {values.size} logits are not finite; the first is token {wrong[0]} with {values[wrong[0]]}",
        hint="check the weights with `openk3 verify MODEL --deep`",
    )

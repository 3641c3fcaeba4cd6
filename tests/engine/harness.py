"""An engine whose steps the test makes, in memory that is NaN wherever nobody holds it, and the plain loop beside it.

Unusual: the plain loop knows no batch, page, cache or draft; every answer of the engine has to equal its, bit for bit.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch

from openk3.checkpoint.random_init import init_parameters
from openk3.engine.cache.disk import DiskTier
from openk3.engine.config import EngineConfig
from openk3.engine.core import EngineCore
from openk3.engine.grammar import GrammarCompiler, Matcher
from openk3.engine.memory import MemoryPlan
from openk3.engine.sampler import RowSampler, logit_rows
from openk3.engine.sequence import EngineSequence
from openk3.engine.speculative.drafter import ComputedRow, Drafter
from openk3.engine.stream import TokenStream
from openk3.errors import OpenK3Error
from openk3.model.model import K3ForCausalLM
from openk3.model.presets import preset
from openk3.protocol.request import Request
from openk3.protocol.sampling import TokenOutput

STOP = 7
"""The token that ends answers here."""

_MOST_STEPS = 20_000


@cache
def build(name: str = "mini4", dtype: torch.dtype = torch.float32, seed: int = 0) -> K3ForCausalLM:
    """Make a random model, once per process; its head is scaled so that answers vary."""
    model = K3ForCausalLM(preset(name), dtype=dtype)
    init_parameters(model, seed=seed)
    with torch.no_grad():
        model.lm_head.weight.mul_(4)
    return model.eval()


def ids(length: int, seed: int, vocab: int = 256) -> tuple[int, ...]:
    """Return random token ids without the one that ends answers."""
    rng = random.Random(seed)
    return tuple(token + (token >= STOP) for token in rng.choices(range(vocab - 1), k=length))


@dataclass(frozen=True)
class PlainAnswer:
    """What the plain loop gave."""

    outputs: tuple[TokenOutput, ...]

    @property
    def ids(self) -> list[int]:
        """The generated ids."""
        return [output.token_id for output in self.outputs]


def plain(
    model: K3ForCausalLM, request: Request, *, stop: Collection[int] = (STOP,), matcher: Matcher | None = None
) -> PlainAnswer:
    """Generate with one state, one token at a time."""
    params = request.params
    stops = frozenset(stop).union(params.stop_token_ids)
    sampler = RowSampler(params, request.prompt_ids, stops, model.config.vocab_size)
    state, new, outputs = model.new_state(), list(request.prompt_ids), []
    limit = params.max_tokens or model.config.max_position_embeddings - len(new)
    with torch.inference_mode():
        for count in range(1, limit + 1):
            logits = model(torch.tensor(new), [len(new)], [state], last_only=True)
            chosen = sampler.choose(logit_rows(logits)[0], None if matcher is None else matcher.allowed())
            sampler.append(chosen.token_id)
            if matcher is not None:
                matcher.accept(chosen.token_id)
            reason = "stop" if chosen.token_id in stops else "length" if count == limit else None
            outputs.append(TokenOutput(chosen.token_id, chosen.logprob, reason, chosen.alternatives))
            if reason:
                break
            new = [chosen.token_id]
    return PlainAnswer(tuple(outputs))


class Oracle:
    """A drafter that is right as often as it is told: it knows the plain answers."""

    max_depth = 14
    bytes_per_token = 0
    bytes_per_sequence = 0

    def __init__(self, answers: Callable[[EngineSequence], Sequence[int]], right: float, seed: int) -> None:
        self._answers, self._right, self._random = answers, right, random.Random(seed)

    def propose(self, sequences: Sequence[EngineSequence], depths: Sequence[int]) -> list[list[int]]:
        """Guess between 0 and 14 tokens, whatever depth was asked for within the limit."""
        return [self._guess(sequence, depth) for sequence, depth in zip(sequences, depths, strict=True)]

    def _guess(self, sequence: EngineSequence, depth: int) -> list[int]:
        room = sequence.limit - len(sequence.tokens) - 1
        depth = max(0, min(self._random.choice([depth, 1, 3, 14]), room))
        truth = list(self._answers(sequence))[sequence.num_generated :][:depth]
        return [t if self._random.random() < self._right else self._random.randrange(256) for t in truth]

    def computed(self, rows: Sequence[ComputedRow]) -> None:
        """Check what it is shown."""
        for row in rows:
            assert row.start == row.sequence.position
            assert row.mix.isfinite().all()

    def release(self, sequence: EngineSequence) -> None:
        """Forget nothing: it knows nothing."""


class Harness:
    """An `EngineCore` with ``slots`` and ``blocks``, stepped by hand; memory that nobody holds is NaN."""

    def __init__(
        self,
        model: K3ForCausalLM,
        config: EngineConfig | None = None,
        *,
        slots: int = 8,
        blocks: int = 400,
        drafter: Drafter | None = None,
        grammars: GrammarCompiler | None = None,
        disk: DiskTier | None = None,
        stop: Collection[int] = (STOP,),
    ) -> None:
        config = config or EngineConfig(max_running=slots)
        page = len(model.config.mla_layers) * config.page_size * model.config.mla.cache_width * model.dtype.itemsize
        memory = MemoryPlan.of_blocks(num_slots=slots, num_blocks=blocks, block_bytes=page)
        self.core = EngineCore(
            model, config, memory, stop_token_ids=stop, grammars=grammars, drafter=drafter, disk=disk
        )
        self.poison()

    def submit(self, request: Request) -> TokenStream:
        """Hand in a request."""
        stream = TokenStream()
        self.core.add(self.core.prepare(request, stream))
        return stream

    def step(self) -> None:
        """Make one step, and spoil what it freed."""
        self.core.step()
        self.poison()

    def run(self) -> None:
        """Step until nothing is left to do."""
        for _ in range(_MOST_STEPS):
            if not self.core.has_work:
                return
            self.step()
        raise AssertionError(f"not done after {_MOST_STEPS} steps")

    def answer(self, request: Request) -> tuple[TokenOutput, ...]:
        """Run one request to its end."""
        stream = self.submit(request)
        self.run()
        return tuple(stream)

    def poison(self) -> None:
        """Fill free blocks and free slots with NaN (all bits set)."""
        pool, slots = self.core.holdings.pool, self.core.holdings.slots
        free = np.flatnonzero(pool.counts == 0)
        self.core.holdings._arena._data[free] = 255
        for states in (slots.recurrent, slots.opened, slots.conv, slots.chunk_conv):
            states[:, slots._free] = float("nan")

    def check_nothing_is_held(self) -> None:
        """Assert that no request left anything behind but checkpoints, and those release everything."""
        slots, pool, cache_ = self.core.holdings.slots, self.core.holdings.pool, self.core.cache
        assert sorted(slots._free) == list(range(slots.recurrent.shape[1]))
        assert not self.core.scheduler.running and not self.core.scheduler.num_waiting
        cache_.clear()
        assert pool.num_free == pool.num_blocks


def drain(stream: TokenStream) -> tuple[list[TokenOutput], OpenK3Error | None]:
    """Return a closed stream's tokens and its error."""
    outputs: list[TokenOutput] = []
    try:
        for output in _items(stream):
            outputs.append(output)
    except OpenK3Error as error:
        return outputs, error
    return outputs, None


def _items(stream: TokenStream) -> Iterator[TokenOutput]:
    assert stream.stats is not None, "the stream is not closed"
    return iter(stream)

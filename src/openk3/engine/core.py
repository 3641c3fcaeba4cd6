"""The engine without a thread: requests go in, `step` computes one batch and passes tokens on.

Unusual: a draft is right if the token chosen at its place, with the random number of that place, is the same one. So
speculation cannot change an answer, greedy or sampled. Whatever goes wrong with one request ends that request only.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any, TypeVar

from openk3.engine.cache.arena import Arena, PageRows
from openk3.engine.cache.blocks import BlockPool
from openk3.engine.cache.disk import DiskTier
from openk3.engine.cache.identity import CHUNK, HashChain
from openk3.engine.cache.prefix import PrefixCache
from openk3.engine.config import EngineConfig
from openk3.engine.grammar import GrammarCompiler, Matcher
from openk3.engine.holdings import Holdings
from openk3.engine.memory import MemoryPlan
from openk3.engine.metrics import EngineMetrics
from openk3.engine.runner import Runner, StepResult
from openk3.engine.sampler import LogitRow, RowSampler, logit_rows
from openk3.engine.scheduler import Scheduler, StepRow
from openk3.engine.sequence import EngineSequence
from openk3.engine.slots import StateSlots, checkpoint_bytes
from openk3.engine.speculative.depth import AdaptiveDepth
from openk3.engine.speculative.drafter import ComputedRow, Drafter
from openk3.engine.stream import TokenStream, closed_engine
from openk3.errors import CapacityError, ConfigError, DeadlineError, EngineError, NumericsError, OpenK3Error
from openk3.model.model import K3ForCausalLM
from openk3.protocol.request import Request
from openk3.protocol.sampling import FinishReason, TokenOutput

_log = logging.getLogger(__name__)
Drafts = TypeVar("Drafts")


class EngineCore:
    """A model, its caches and the requests in them; used by one thread, except `prepare`."""

    def __init__(
        self,
        model: K3ForCausalLM,
        config: EngineConfig,
        memory: MemoryPlan,
        *,
        stop_token_ids: Collection[int] = (),
        grammars: GrammarCompiler | None = None,
        drafter: Drafter | None = None,
        disk: DiskTier | None = None,
    ) -> None:
        self.config = config
        self.stop_token_ids = frozenset(stop_token_ids)
        self._limits = model.config
        self._grammars, self._drafter, self._disk = grammars, drafter, disk
        device, dtype = model.lm_head.weight.device, model.dtype
        slots = StateSlots(model.config, memory.num_slots, dtype, device)
        arena = Arena(memory.num_blocks, memory.block_bytes, device)
        layers, width = len(model.config.mla_layers), model.config.mla.cache_width
        latents = arena.latents(dtype, layers, config.page_size, width)
        pool = BlockPool(memory.num_blocks)
        state_bytes = checkpoint_bytes(model.config, dtype)
        self.cache = PrefixCache(
            config.identity_unit, config.page_size, pool, arena, state_bytes, latents=latents, disk=disk
        )
        self.holdings = Holdings(config, slots, pool, arena, PageRows(latents), self.cache)
        self.scheduler = Scheduler(
            replace(config, max_running=min(config.max_running, memory.num_slots)), self.holdings, self._on_release
        )
        self._runner = Runner(model, slots, latents)
        self._drafting: dict[EngineSequence, None] = {}
        self._live: dict[EngineSequence, None] = {}
        self._counts: dict[str, Any] = defaultdict(int)

    @property
    def metrics(self) -> EngineMetrics:
        """Counts so far and what is held."""
        return EngineMetrics(
            **self._counts,
            preemptions=self.scheduler.preemptions,
            running=len(self.scheduler.running),
            waiting=self.scheduler.num_waiting,
            free_slots=self.holdings.slots.num_free,
            free_blocks=self.holdings.pool.num_free,
            cache=self.cache.metrics,
        )

    @property
    def max_tokens(self) -> int:
        """Most tokens of one sequence, prompt and answer: the context, or what fits in the memory."""
        return min(self._limits.max_position_embeddings, self.holdings.max_tokens)

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self.scheduler.running or self.scheduler.num_waiting)

    def prepare(self, request: Request, stream: TokenStream) -> EngineSequence:
        """Check a request and make a sequence of it; by any thread.

        Raises:
            ConfigError: an id outside the vocabulary, or a grammar that is none.
            CapacityError: the prompt leaves no room for an answer.
        """
        _require_ids(request.prompt_ids, self._limits.vocab_size)
        num_prompt, most = len(request.prompt_ids), self.max_tokens
        if num_prompt >= most:
            context = self._limits.max_position_embeddings
            what = "the model's context of" if most == context else "what the engine's memory holds,"
            raise CapacityError(
                f"the prompt has {num_prompt:,} tokens, expected fewer than {what} {most:,}",
                hint="shorten the prompt or start a new conversation"
                if most == context
                else "shorten the prompt or give the engine more memory",
            )
        params = request.params
        wanted = most - num_prompt if params.max_tokens is None else params.max_tokens
        stops = self.stop_token_ids.union(params.stop_token_ids)
        return EngineSequence(
            request=request,
            stream=stream,
            sampler=RowSampler(params, request.prompt_ids, stops, self._limits.vocab_size),
            chain=HashChain(self.config.identity_unit, salt=request.cache_salt.encode(), media=request.media),
            stop_token_ids=stops,
            limit=min(most, num_prompt + wanted),
            matcher=self._matcher(request),
            depth=AdaptiveDepth(self.config.speculate_depth),
        )

    def add(self, sequence: EngineSequence) -> None:
        """Let a prepared sequence wait for its turn."""
        self._live[sequence] = None
        self.scheduler.add(sequence)

    def step(self) -> None:
        """Drop who left, admit who fits, compute one batch, pass on its tokens."""
        begin = time.monotonic()
        self._drop(begin)
        self.scheduler.admit(begin)
        self._draft()
        rows = self.scheduler.plan()
        if rows:
            self._compute(rows)
            self._count(steps=1)
        else:
            self._refuse_stuck()
        self._count(step_s=time.monotonic() - begin)

    def close(self) -> None:
        """End every request, also after an error that left the books in disorder, and the cache's files."""
        for sequence in list(self._live):
            try:
                self._fail(sequence, closed_engine())
            except Exception:
                _log.exception("a request could not be ended in order")
        if self._disk is not None:
            self._disk.close()

    def _matcher(self, request: Request) -> Matcher | None:
        if request.grammar is None:
            return None
        if self._grammars is None:
            raise ConfigError("a grammar was given, but the engine was made without a vocabulary for grammars")
        return self._grammars.compile(request.grammar)

    def _drop(self, now: float) -> None:
        for sequence in [*self.scheduler.running, *self.scheduler.waiting]:
            if sequence.stream.cancelled:
                self._end(sequence)
                self._count(cancelled=1)
            elif sequence.is_late(now):
                waited = f"after {now - sequence.arrived:.1f} s with {sequence.num_generated} tokens written"
                self._fail(
                    sequence,
                    DeadlineError(
                        f"the request's time of {sequence.request.timeout_s} s was over {waited}",
                        hint="allow more time, or ask for fewer tokens",
                    ),
                )

    def _draft(self) -> None:
        self._choose_drafting()
        for sequence in self.scheduler.running:
            sequence.drafts = []
        writing = [sequence for sequence in self._drafting if sequence.is_writing]
        depths = [self._depth(sequence) for sequence in writing]
        proposed = self._ask_drafter(lambda drafter: drafter.propose(writing, depths))
        for sequence, drafts in zip(writing, proposed or [[]] * len(writing), strict=True):
            allowed = len(drafts) if sequence.matcher is None else sequence.matcher.count_allowed(drafts)
            sequence.drafts = drafts[:allowed]

    def _choose_drafting(self) -> None:
        """Draft for the first ones, as many as memory was planned for: pages are shared, a drafter's notes are not."""
        self._drafting.clear()
        if self._drafter is None:
            return
        left = self.holdings.max_tokens
        for sequence in self.scheduler.running:
            left -= len(sequence.tokens)
            if left >= 0:
                self._drafting[sequence] = None
            else:
                self._on_release(sequence)

    def _depth(self, sequence: EngineSequence) -> int:
        """Return how many drafts could count: the last token of an answer needs none after it."""
        if self._drafter is None:
            return 0
        return max(0, min(sequence.depth.depth, self._drafter.max_depth, sequence.limit - len(sequence.tokens) - 1))

    def _compute(self, rows: Sequence[StepRow]) -> None:
        begin = time.monotonic()
        try:
            result = self._runner.run(rows)
            logits = logit_rows(result.logits)
            sound = result.sound_rows()
        except Exception as error:
            _log.exception("a step of %d requests failed", len(rows))
            for row in rows:
                self._fail(row.sequence, EngineError(f"the step that computed this request failed: {error}"))
            return
        self._count(model_s=time.monotonic() - begin)
        parts = pairwise(accumulate((row.num_logits for row in rows), initial=0))
        before = [len(row.sequence.tokens) for row in rows]
        reasons = [
            self._take(row, logits[first:last]) if is_sound else _not_finite(row)
            for row, (first, last), is_sound in zip(rows, parts, sound, strict=True)
        ]
        chosen = [len(row.sequence.tokens) - n for row, n in zip(rows, before, strict=True)]
        self._store(rows, result, chosen, sound)
        for row, reason in zip(rows, reasons, strict=True):
            if isinstance(reason, OpenK3Error):
                self._fail(row.sequence, reason)
            elif reason is not None:
                self._finish(row.sequence)

    def _take(self, row: StepRow, logits: Sequence[LogitRow]) -> FinishReason | OpenK3Error | None:
        """Choose tokens as long as drafts are right; return why the sequence ends, None if it does not."""
        sequence = row.sequence
        try:
            for place, values in enumerate(logits):
                reason = self._choose(sequence, values)
                if reason is not None or place == row.drafted or sequence.tokens[-1] != row.ids[row.num_known + place]:
                    return reason
        except OpenK3Error as error:
            return error
        except Exception as error:
            _log.exception("choosing a token failed")
            return EngineError(f"the token after {sequence.num_generated} of this request could not be chosen: {error}")
        return None

    def _choose(self, sequence: EngineSequence, values: LogitRow) -> FinishReason | None:
        matcher = sequence.matcher
        chosen = sequence.sampler.choose(values, None if matcher is None else matcher.allowed())
        token = chosen.token_id
        if matcher is not None:
            matcher.accept(token)
        sequence.append(token)
        full = len(sequence.tokens) >= sequence.limit
        reason: FinishReason | None = "stop" if token in sequence.stop_token_ids else "length" if full else None
        sequence.stream.put(TokenOutput(token, chosen.logprob, reason, chosen.alternatives))
        return reason

    def _store(self, rows: Sequence[StepRow], result: StepResult, chosen: Sequence[int], sound: Sequence[bool]) -> None:
        """Keep the tokens that count: a row's own, and drafts that another token was chosen after."""
        counted = [row.num_known + max(0, n - 1) for row, n in zip(rows, chosen, strict=True)]
        result.states.settle(counted)
        self._tell_drafter(rows, result, counted, sound)
        for row, count, num_chosen, is_sound in zip(rows, counted, chosen, sound, strict=True):
            self._count_row(row, num_chosen)
            row.sequence.position += count
            if is_sound:
                self.holdings.note_computed(row.sequence)

    def _tell_drafter(
        self, rows: Sequence[StepRow], result: StepResult, counted: Sequence[int], sound: Sequence[bool]
    ) -> None:
        computed = [
            ComputedRow(row.sequence, row.sequence.position, result.mix_of(i, counted[i]))
            for i, row in enumerate(rows)
            if sound[i] and row.sequence in self._drafting
        ]
        self._ask_drafter(lambda drafter: drafter.computed(computed))

    def _ask_drafter(self, ask: Callable[[Drafter], Drafts]) -> Drafts | None:
        """Call the drafter, and do without one from its first failure on: answers do not depend on it."""
        if self._drafter is None:
            return None
        begin = time.monotonic()
        try:
            return ask(self._drafter)
        except Exception:
            _log.exception("the drafter failed; the engine goes on without speculation")
            self._drafter = None
            return None
        finally:
            self._count(draft_s=time.monotonic() - begin)

    def _count_row(self, row: StepRow, chosen: int) -> None:
        accepted = row.num_right(row.sequence.tokens[-chosen:] if chosen else [])
        if chosen:
            row.sequence.depth.observe(row.drafted, accepted)
        row.sequence.drafted += row.drafted
        row.sequence.accepted += accepted
        read = row.num_known if not row.sequence.num_generated - chosen else row.num_known - 1
        self._count(drafted=row.drafted, accepted=accepted, tokens_written=chosen, tokens_read=read)

    def _finish(self, sequence: EngineSequence) -> None:
        """End normally, keeping the state if the next prompt of the conversation will begin with it."""
        replayed = sequence.request.replayed
        if replayed is not None and self.config.prefix_cache:
            try:
                if replayed(tuple(sequence.generated)) >= sequence.position // CHUNK * CHUNK:
                    self.holdings.publish(sequence)
            except Exception:
                _log.exception("a request's `replayed` failed; its last state is not kept")
        self._end(sequence)
        self._count(finished=1)

    def _fail(self, sequence: EngineSequence, error: OpenK3Error) -> None:
        self._end(sequence, error)
        self._count(failed=1)

    def _end(self, sequence: EngineSequence, error: OpenK3Error | None = None) -> None:
        self._live.pop(sequence, None)
        try:
            self.scheduler.remove(sequence)
        finally:
            sequence.stream.close(sequence.stats(), error)

    def _refuse_stuck(self) -> None:
        """Fail the first waiting request if nothing runs and it still finds no room, rather than wait for ever."""
        if not self.scheduler.running and (sequence := next(self.scheduler.waiting, None)) is not None:
            self._fail(sequence, CapacityError(f"{len(sequence.tokens):,} tokens find no room in the engine's memory"))

    def _on_release(self, sequence: EngineSequence) -> None:
        self._drafting.pop(sequence, None)
        self._ask_drafter(lambda drafter: drafter.release(sequence))

    def _count(self, **more: float) -> None:
        for name, n in more.items():
            self._counts[name] += n


def _not_finite(row: StepRow) -> NumericsError:
    first, last = row.sequence.position, row.sequence.position + len(row.ids) - 1
    return NumericsError(
        f"the model's result is not finite at one of the tokens {first} to {last} of this request",
        hint="check the weights with `openk3 verify MODEL --deep`",
    )


def _require_ids(ids: Sequence[int], vocab_size: int) -> None:
    if min(ids) >= 0 and max(ids) < vocab_size:
        return
    position, token = next((i, token) for i, token in enumerate(ids) if not 0 <= token < vocab_size)
    raise ConfigError(
        f"prompt token {position} is {token}, expected an id from 0 to {vocab_size - 1}",
        hint="the tokenizer and the model do not belong together",
    )

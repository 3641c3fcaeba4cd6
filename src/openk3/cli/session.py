"""A model with its chat format: messages in, deltas out, as they come.

Unusual: an answer is known as far as it was iterated, so one that is stopped early is what was shown, no more.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import torch

from openk3.chat.parse import StreamParser, collect
from openk3.chat.render import RenderedPrompt, render
from openk3.chat.stop import StopStrings
from openk3.checkpoint.loader import load_model
from openk3.checkpoint.resolve import resolve_model
from openk3.cli.flags import DType, Effort
from openk3.cli.progress import Progress
from openk3.engine.generator import Generator
from openk3.errors import TokenizerError
from openk3.model.accounting import account
from openk3.model.generation_config import GenerationConfig, load_generation_config
from openk3.model.published import load_config
from openk3.protocol.messages import AssistantTurn, ContentDelta, Delta, Message
from openk3.protocol.sampling import FinishReason, SamplingParams, Usage
from openk3.tokenizer.bpe import Tokenizer
from openk3.tokenizer.detokenizer import IncrementalDetokenizer
from openk3.tokenizer.vocabulary import VOCABULARY_FILE

# Below this, one thread decoded fastest on two cores, and 25 times faster than two threads while others used them.
_WORTH_THREADS = 50_000_000


@dataclass(frozen=True)
class LoadedModel:
    """What it takes to answer with a model; ``about`` says in one line what was loaded."""

    generator: Generator
    tokenizer: Tokenizer
    generation: GenerationConfig
    about: str


def load(name: str, dtype: DType) -> LoadedModel:
    """Load a model folder or bundled model; raise `OpenK3Error` for whatever is wrong with it."""
    folder = resolve_model(name)
    config = load_config(folder)
    parameters = account(config, vision=False).total.parameters
    _choose_threads(parameters)
    generation = load_generation_config(folder)
    tokenizer = _load_tokenizer(folder)
    size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    with Progress(f"loading {name}", size) as progress:
        model = load_model(folder, dtype=getattr(torch, dtype), progress=progress)
    device = model.lm_head.weight.device
    stop_ids = {tokenizer.special.end_of_msg, config.eos_token_id, *generation.eos_token_ids}
    generator = Generator(model, stop_token_ids=stop_ids, device=device)
    threads = torch.get_num_threads()
    about = f"{name}: {parameters:,} parameters, {dtype} on {device}, {threads} thread{'s' * (threads > 1)}"
    return LoadedModel(generator, tokenizer, generation, about)


def _load_tokenizer(folder: Path) -> Tokenizer:
    file = folder / VOCABULARY_FILE
    if not file.exists():
        raise TokenizerError(
            f"{file}: no such file",
            hint="`openk3 init` writes a model without a vocabulary; "
            f"copy the {VOCABULARY_FILE} of a model with as many tokens in beside its config.json",
        )
    return Tokenizer.load(folder)


def _choose_threads(parameters: int) -> None:
    """Keep a small model to one thread, unless the user chose: others only wait for work, long on a busy machine."""
    if parameters < _WORTH_THREADS and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)


class Decoder(Protocol):
    """Turns generated ids into deltas; `openk3.chat.parse.StreamParser` does, and `PlainText`."""

    def push(self, ids: Sequence[int]) -> list[Delta]:
        """Take the next ids."""

    def finish(self, reason: FinishReason) -> list[Delta]:
        """Give what was held back, now that no more ids come."""


class PlainText:
    """All text is content: for a model that continues a text instead of answering."""

    def __init__(self, tokenizer: Tokenizer, ends: Iterable[int]) -> None:
        self._detokenizer = IncrementalDetokenizer(tokenizer)
        self._ends = frozenset(ends)

    def push(self, ids: Sequence[int]) -> list[Delta]:
        """Decode ``ids`` up to the one that ends the text."""
        text = "".join(self._detokenizer.push(token) for token in ids if token not in self._ends)
        return [ContentDelta(text)] if text else []

    def finish(self, reason: FinishReason) -> list[Delta]:
        """Give what an unfinished character holds."""
        text = self._detokenizer.finish()
        return [ContentDelta(text)] if text else []


class Answer:
    """One answer: iterate over its deltas, once; `turn` and `usage` are what has come so far."""

    def __init__(
        self,
        model: LoadedModel,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        decoder: Decoder,
        *,
        num_prompt_tokens: int | None = None,
    ) -> None:
        self._tokens = model.generator.stream(prompt_ids, params)
        self._decoder = decoder
        self._stops = StopStrings(params.stop)
        self._shown: list[Delta] = []
        self._num_prompt = len(prompt_ids) if num_prompt_tokens is None else num_prompt_tokens
        self._num_generated = 0
        self._reason: FinishReason | None = None
        self._cancelled = False

    def cancel(self) -> None:
        """End the answer after the token that is being computed."""
        self._cancelled = True

    @property
    def turn(self) -> AssistantTurn:
        """The collected answer; its finish reason is None if it was left early."""
        return collect(self._shown, self._reason)

    @property
    def usage(self) -> Usage:
        """Tokens read (as a chat is billed: without the tag that opens the model's channel) and generated so far."""
        return Usage(self._num_prompt, self._num_generated)

    def __iter__(self) -> Iterator[Delta]:
        for token in self._tokens:
            self._num_generated += 1
            yield from self._show(self._decoder.push([token.token_id]))
            if self._stops.found is not None:
                self._reason = "stop"
            elif token.finish_reason is not None:
                self._reason = token.finish_reason
                yield from self._show(self._decoder.finish(token.finish_reason))
                yield from self._flush()
            if self._reason is not None or self._cancelled:
                return

    def _show(self, deltas: Iterable[Delta]) -> Iterator[Delta]:
        for delta in deltas:
            if not isinstance(delta, ContentDelta):
                yield from self._flush()
            elif text := self._stops.push(delta.text):
                delta = ContentDelta(text)
            else:
                continue
            self._shown.append(delta)
            yield delta

    def _flush(self) -> Iterator[Delta]:
        if text := self._stops.finish():
            self._shown.append(ContentDelta(text))
            yield self._shown[-1]


def continue_text(model: LoadedModel, text: str, params: SamplingParams) -> Answer:
    """Continue ``text`` as it stands, without the chat format, up to the end of a training text or a message."""
    params = replace(params, stop_token_ids=(*params.stop_token_ids, model.tokenizer.special.eos))
    ends = {*params.stop_token_ids, *model.generator.stop_token_ids}
    return Answer(model, model.tokenizer.encode(text), params, PlainText(model.tokenizer, ends))


class Conversation:
    """A conversation without tools; settings may change between turns."""

    def __init__(
        self,
        model: LoadedModel,
        params: SamplingParams,
        *,
        system: str | None = None,
        effort: Effort = "max",
        thinking: bool = True,
    ) -> None:
        self.effort = effort
        self._model, self._params, self._thinking = model, params, thinking
        self._opening = [Message(role="system", content=system)] if system else []
        self._messages: list[Message] = []

    @property
    def messages(self) -> tuple[Message, ...]:
        """Everything said so far."""
        return (*self._opening, *self._messages)

    def reset(self) -> None:
        """Forget everything but the system message."""
        self._messages.clear()

    def ask(self, text: str) -> Answer:
        """Answer ``text``; nothing is remembered until `keep`."""
        prompt = self._render([*self.messages, Message(role="user", content=text)])
        parser = StreamParser(self._model.tokenizer, channel=prompt.channel, tools_declared=False)
        return Answer(self._model, prompt.ids, self._params, parser, num_prompt_tokens=prompt.num_prompt_tokens)

    def keep(self, text: str, turn: AssistantTurn) -> None:
        """Remember a question and its answer, as far as it came; nothing of one that never began."""
        if turn.content or turn.reasoning:
            answer = Message(role="assistant", content=turn.content, reasoning=turn.reasoning)
            self._messages += [Message(role="user", content=text), answer]

    def _render(self, messages: Sequence[Message]) -> RenderedPrompt:
        return render(messages, tokenizer=self._model.tokenizer, thinking=self._thinking, effort=self.effort)

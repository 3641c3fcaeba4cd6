"""What ``chat`` and ``generate`` share once a model is needed: loading it with progress, and a conversation with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from openk3.checkpoint.resolve import resolve_model
from openk3.cli.errors import UsageError
from openk3.cli.flags import DType, Effort, EngineFlags
from openk3.cli.progress import Progress
from openk3.engine.config import EngineConfig
from openk3.errors import ConfigError
from openk3.llm.answer import Answer
from openk3.llm.llm import LLM
from openk3.protocol.messages import AssistantTurn, Message
from openk3.protocol.sampling import SamplingParams


def load(name: str, dtype: DType, flags: EngineFlags) -> LLM:
    """Load a model folder or bundled model; raise `OpenK3Error` for whatever is wrong with it."""
    config = engine_config(flags)
    size = sum(file.stat().st_size for file in resolve_model(name).glob("*.safetensors"))
    with Progress(f"loading {name}", size) as progress:
        return LLM(name, dtype=dtype, engine=config, draft_model=flags.draft_model, progress=progress)


def engine_config(flags: EngineFlags) -> EngineConfig:
    """Give what the flags say to an engine; raise `UsageError` for what has no meaning."""
    try:
        return EngineConfig(**flags.settings())
    except ConfigError as error:
        raise UsageError(error.message, hint=error.hint) from None


class Conversation:
    """A conversation without tools; settings may change between turns."""

    def __init__(
        self,
        llm: LLM,
        params: SamplingParams,
        *,
        system: str | None = None,
        effort: Effort = "max",
        thinking: bool = True,
    ) -> None:
        self.effort = effort
        self._llm, self._params, self._thinking = llm, params, thinking
        self._opening = opening(system)
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
        messages: Sequence[Message | Mapping[str, Any]] = [*self.messages, Message(role="user", content=text)]
        return self._llm.stream(messages, params=self._params, thinking=self._thinking, effort=self.effort)

    def keep(self, text: str, turn: AssistantTurn) -> None:
        """Remember a question and its answer, as far as it came; nothing of one that never began."""
        if turn.content or turn.reasoning:
            answer = Message(role="assistant", content=turn.content, reasoning=turn.reasoning)
            self._messages += [Message(role="user", content=text), answer]


def opening(system: str | None) -> list[Message]:
    """Give the messages that come before the first question."""
    return [Message(role="system", content=system)] if system else []

"""What a dialect's endpoint is: from a body to a question, and from an answer to a body or to events.

Unusual: endpoints only convert. Limits, submission, disconnection, usage and errors are the same for all of them and
live in `openk3.server.exchange`, so a dialect can be tested without a server and cannot leak another request's data.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from openk3.llm.answer import Answer, Piece
from openk3.llm.question import ChatOptions
from openk3.protocol.checks import shown
from openk3.protocol.messages import Message
from openk3.protocol.sampling import SamplingParams, Usage
from openk3.server.faults import Fault
from openk3.tokenizer.bpe import Tokenizer


@dataclass(frozen=True, kw_only=True)
class ServedModel:
    """What endpoints know of the model: its names (the first is its own), tokenizer, settings and limits.

    ``max_tokens`` bounds prompt and answer together. ``free_sampling`` allows parameters that K3's rules fix.
    """

    names: tuple[str, ...]
    tokenizer: Tokenizer
    sampling: SamplingParams
    max_tokens: int
    free_sampling: bool = False
    created: int = 0


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A body that was understood.

    Either ``messages`` are to be answered with ``options``, or ``prompt`` (text or token ids) is to be continued with
    ``params``. ``stream`` asks for events. ``body`` is the endpoint's own view of the body, for its answers.
    ``explicit_max_tokens`` is a limit that the client gave itself: see `require_room`.
    """

    model: str
    messages: tuple[Message, ...] = ()
    options: ChatOptions = field(default_factory=lambda: ChatOptions())
    prompt: str | Sequence[int] | None = None
    params: SamplingParams | None = None
    stream: bool = False
    explicit_max_tokens: int | None = None
    body: Any = None


@dataclass(frozen=True)
class Event:
    """One server-sent event: an optional name, and JSON data or a literal text such as ``[DONE]``."""

    data: Mapping[str, Any] | str
    name: str | None = None


class EventStream(Protocol):
    """The events of one answer; every method is called in the event loop and must not wait.

    Order: `begin` once, `push` for each piece, then `end` or `fail` once. ``usage`` is what was counted so far.
    """

    def begin(self, usage: Usage) -> Iterable[Event]:
        """Give what comes before the first token."""
        ...

    def push(self, piece: Piece, usage: Usage) -> Iterable[Event]:
        """Give the events of more deltas."""
        ...

    def end(self, answer: Answer) -> Iterable[Event]:
        """Give the last events of an answer that is complete."""
        ...

    def fail(self, fault: Fault) -> Iterable[Event]:
        """Give the last events of an answer that failed on the way."""
        ...


class Endpoint(Protocol):
    """One POST endpoint of a dialect."""

    paths: tuple[str, ...]

    def read(self, body: Mapping[str, Any], model: ServedModel) -> Asked:
        """Understand a JSON object.

        Raises:
            Fault: what is wrong with it, where, and what was expected (status 400; 404 for an unknown model).
        """
        ...

    def whole(self, asked: Asked, answer: Answer, model: ServedModel) -> dict[str, Any]:
        """Return the body of a finished answer."""
        ...

    def events(self, asked: Asked, model: ServedModel) -> EventStream:
        """Begin to turn an answer into events."""
        ...

    def error(self, fault: Fault) -> dict[str, Any]:
        """Return the body of an error in this dialect."""
        ...


class Counter(Protocol):
    """One POST endpoint of a dialect that counts the tokens of a prompt and answers nothing."""

    paths: tuple[str, ...]

    def count(self, body: Mapping[str, Any], model: ServedModel) -> dict[str, Any]:
        """Return the body of the count; called in a worker thread.

        Raises:
            OpenK3Error: what is wrong with ``body``, as for `Endpoint.read`, or cannot be rendered.
        """
        ...

    def error(self, fault: Fault) -> dict[str, Any]:
        """Return the body of an error in this dialect."""
        ...


def require_model(name: object, model: ServedModel) -> str:
    """Return ``name`` if the server has a model of that name.

    Raises:
        Fault: it has none (404), or the name is not text (400).
    """
    if not isinstance(name, str) or not name:
        given = "missing" if name is None else shown(name)
        raise Fault(f"model is {given}, expected {' or '.join(model.names)}", param="model")
    if name not in model.names:
        raise Fault(
            f"there is no model {name!r:.100} here, expected {' or '.join(model.names)}",
            status=404,
            kind="resource_not_found_error",
            code="model_not_found",
            param="model",
        )
    return name


def require_room(asked: Asked, prompt_tokens: int, model: ServedModel) -> None:
    """Check that the prompt and as many tokens as the client asked for fit the model together.

    Raises:
        Fault: they do not (400). A limit that nobody asked for is cut to what is left instead.
    """
    wanted = asked.explicit_max_tokens
    if wanted is not None and prompt_tokens + wanted > model.max_tokens:
        raise Fault(
            f"the prompt has {prompt_tokens:,} tokens, which together with {wanted:,} of the answer is more than the "
            f"{model.max_tokens:,} of this model",
            code="context_length_exceeded",
            hint=f"ask for at most {model.max_tokens - prompt_tokens:,} tokens"
            if prompt_tokens < model.max_tokens
            else "shorten the prompt",
        )

"""OpenAI's dialect without a server: bodies go to an endpoint, a scripted model answers.

Unusual: its vocabulary is the 256 bytes, so every character beyond ASCII is cut by tokens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from openk3.engine.engine import Engine
from openk3.engine.stream import TokenStream
from openk3.llm.answer import Answer
from openk3.llm.llm import LLM
from openk3.llm.loading import LoadedModel
from openk3.model.generation_config import GenerationConfig
from openk3.protocol.request import Request, RequestStats
from openk3.protocol.sampling import FinishReason, SamplingParams, TokenOutput
from openk3.server.endpoint import Asked, Endpoint, Event, ServedModel
from openk3.server.faults import Fault
from openk3.server.openai.chat import ChatCompletions
from openk3.server.openai.completions import Completions
from openk3.tokenizer.bpe import Tokenizer
from tests.cli.scripted import spell

CACHED = 16
"""Tokens of every prompt that a scripted model says it had in its cache."""
HI = {"role": "user", "content": "Hi"}
Reader = Callable[..., Asked]


class OneAnswer:
    """An engine that says one thing, each token with as many alternatives as are wanted."""

    def __init__(self, ids: Sequence[int], stop: int) -> None:
        self.stop_token_ids = frozenset({stop})
        self.requests: list[Request] = []
        self._ids = ids

    def submit(self, request: Request) -> TokenStream:
        self.requests.append(request)
        stops = self.stop_token_ids.union(request.params.stop_token_ids)
        stream, count = TokenStream(), 0
        stream.cached_tokens = CACHED
        for count, token in enumerate(self._ids, 1):
            full = count == request.params.max_tokens
            reason: FinishReason | None = "stop" if token in stops else "length" if full else None
            alternatives = tuple((token + n, -0.25 * (n + 1)) for n in range(request.params.top_logprobs))
            stream.put(TokenOutput(token, -0.25, reason, alternatives))
            if reason is not None:
                break
        stream.close(_stats(len(request.prompt_ids), count))
        return stream

    def close(self) -> None:
        pass


def _stats(num_prompt: int, num_generated: int) -> RequestStats:
    return RequestStats(
        prompt_tokens=num_prompt,
        completion_tokens=num_generated,
        matched_tokens=CACHED,
        cached_tokens=CACHED,
        queue_s=0.0,
        first_token_s=0.1,
        total_s=0.2,
    )


@dataclass(frozen=True)
class Dialect:
    """An endpoint with a model that says what a test wants."""

    model: ServedModel
    endpoint: Endpoint = field(default_factory=ChatCompletions)

    def whole(self, body: Mapping[str, Any], said: str) -> dict[str, Any]:
        """Answer at once."""
        asked, answer = self._ask(body, said)
        return self.endpoint.whole(asked, answer.finish(), self.model)

    def events(self, body: Mapping[str, Any], said: str) -> list[Event]:
        """Answer with events."""
        asked, answer = self._ask({**body, "stream": True}, said)
        return asyncio.run(_events(self.endpoint, asked, answer, self.model))

    def frames(self, body: Mapping[str, Any], said: str) -> list[dict[str, Any]]:
        """Answer with events, and return their data without the last line."""
        *events, done = self.events(body, said)
        assert done.data == "[DONE]"
        return [dict(event.data) for event in events if not isinstance(event.data, str)]

    def deltas(self, body: Mapping[str, Any], said: str) -> list[dict[str, Any]]:
        """Answer with events, and return what each adds."""
        return [frame["choices"][0]["delta"] for frame in self.frames(body, said) if frame["choices"]]

    def _ask(self, body: Mapping[str, Any], said: str) -> tuple[Asked, Answer]:
        asked, tokenizer = self.endpoint.read(body, self.model), self.model.tokenizer
        engine = OneAnswer(spell(tokenizer, said), tokenizer.special.end_of_msg)
        llm = LLM.of(LoadedModel(cast(Engine, engine), tokenizer, GenerationConfig(), "scripted"))
        if asked.prompt is not None:
            return asked, llm.stream_text(asked.prompt, asked.params)
        return asked, llm.stream(asked.messages, **asked.options)


async def _events(endpoint: Endpoint, asked: Asked, answer: Answer, model: ServedModel) -> list[Event]:
    events = endpoint.events(asked, model)
    sent = list(events.begin(answer.usage))
    async for piece in answer.pieces():
        sent += events.push(piece, answer.usage)
    return [*sent, *events.end(answer)]


@pytest.fixture(scope="session")
def model(tiny_model: Path) -> ServedModel:
    """A vocabulary of bytes under K3's name and rules."""
    tokenizer = Tokenizer.load(tiny_model)
    sampling = SamplingParams(temperature=1.0, top_p=0.95)
    return ServedModel(names=("kimi-k3",), tokenizer=tokenizer, sampling=sampling, max_tokens=1 << 20)


@pytest.fixture(scope="session")
def published_model(shared: Path, model: ServedModel) -> ServedModel:
    """Kimi K3's own vocabulary."""
    tokenizer = Tokenizer.load(shared / "data" / "tokenizer")
    return ServedModel(names=model.names, tokenizer=tokenizer, sampling=model.sampling, max_tokens=model.max_tokens)


@pytest.fixture(scope="session")
def chat(model: ServedModel) -> Dialect:
    """Chat Completions."""
    return Dialect(model)


@pytest.fixture(scope="session")
def completions(model: ServedModel) -> Dialect:
    """Completions."""
    return Dialect(model, Completions())


@pytest.fixture(scope="session")
def read(model: ServedModel) -> Callable[..., Asked]:
    """Read a body of Chat Completions that has these fields besides a model and a question."""

    def reader(**fields: Any) -> Asked:
        return ChatCompletions().read(ask(**fields), model)

    return reader


def ask(**fields: Any) -> dict[str, Any]:
    """A body with a model and a question, and these fields."""
    return {"model": "kimi-k3", "messages": [HI], **fields}


def refusal(read: Reader, **fields: Any) -> Fault:
    """Why a body with these fields is refused."""
    with pytest.raises(Fault) as caught:
        read(**fields)
    assert caught.value.status == 400
    assert caught.value.kind == "invalid_request_error"
    caught.value.text.encode()
    return caught.value


def tool(name: str = "get_weather", **function: Any) -> dict[str, Any]:
    """A declaration of a tool that takes a city."""
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    return {"type": "function", "function": {"name": name, "parameters": schema, **function}}


def response(text: str) -> str:
    """What a model writes of an answer from the response channel on, with everything closed."""
    return f"{text}<|close|>response<|sep|><|close|>message<|sep|><|end_of_msg|>"


def thought(reasoning: str, text: str = "") -> str:
    """What a model writes of an answer from the think channel on, with everything closed."""
    return f"{reasoning}<|close|>think<|sep|><|open|>response<|sep|>{response(text)}"


def calls(*written: tuple[str, str], reasoning: str = "", text: str = "") -> str:
    """What a model writes to think, say something and call tools with a city each."""
    elements = "".join(
        f'<|open|>call tool="{name}" index="{index}"<|sep|><|open|>argument key="city" type="string"<|sep|>{city}'
        "<|close|>argument<|sep|><|close|>call<|sep|>"
        for index, (name, city) in enumerate(written, 1)
    )
    return (
        f"{reasoning}<|close|>think<|sep|><|open|>response<|sep|>{text}<|close|>response<|sep|>"
        f"<|open|>tools<|sep|>{elements}<|close|>tools<|sep|><|close|>message<|sep|><|end_of_msg|>"
    )

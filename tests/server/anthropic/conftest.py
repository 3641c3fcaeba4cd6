"""Anthropic's dialect without a server: bodies go to the endpoint, a scripted model answers.

Unusual: the official client is connected through its transport, so that it checks requests and answers by itself.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import anthropic
import httpx2
import pytest

from openk3.checkpoint.resolve import resolve_model
from openk3.errors import OpenK3Error
from openk3.llm.answer import Answer
from openk3.model.generation_config import GenerationConfig
from openk3.protocol.sampling import SamplingParams
from openk3.server.anthropic.messages import Messages
from openk3.server.anthropic.tokens import CountTokens
from openk3.server.endpoint import Asked, Event, ServedModel
from openk3.server.faults import fault_of
from openk3.tokenizer.bpe import Tokenizer
from tests.cli.scripted import Script, ScriptedEngine, spell

SAMPLING = SamplingParams(temperature=1.0, top_p=0.95)


@pytest.fixture(scope="session")
def model() -> ServedModel:
    """The bundled vocabulary under K3's name and rules."""
    tokenizer = Tokenizer.load(resolve_model("nano"))
    return ServedModel(names=("kimi-k3", "nano"), tokenizer=tokenizer, sampling=SAMPLING, max_tokens=1 << 20)


@dataclass(frozen=True)
class Dialect:
    """The endpoint with a model that says what a test wants."""

    model: ServedModel
    script: Script

    def whole(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Answer at once."""
        asked, answer = self._ask(body)
        return Messages().whole(asked, answer.finish(), self.model)

    def events(self, body: Mapping[str, Any]) -> list[Event]:
        """Answer with events."""
        asked, answer = self._ask(body)
        return asyncio.run(_streamed(asked, answer, self.model))

    @cached_property
    def client(self) -> anthropic.Anthropic:
        """The official client."""
        transport = httpx2.MockTransport(self._respond)
        http = httpx2.Client(transport=transport)
        return anthropic.Anthropic(api_key="none", base_url="http://openk3", http_client=http, max_retries=0)

    def _ask(self, body: Mapping[str, Any]) -> tuple[Asked, Answer]:
        asked = Messages().read(body, self.model)
        return asked, self.script.llm.stream(asked.messages, **asked.options)

    def _respond(self, request: httpx2.Request) -> httpx2.Response:
        body = json.loads(request.content)
        try:
            if request.url.path in CountTokens.paths:
                return httpx2.Response(200, json=CountTokens().count(body, self.model))
            assert request.url.path in Messages.paths
            if not body.get("stream"):
                return httpx2.Response(200, json=self.whole(body))
            text = "".join(f"event: {event.name}\ndata: {json.dumps(event.data)}\n\n" for event in self.events(body))
            return httpx2.Response(200, headers={"content-type": "text/event-stream"}, text=text)
        except OpenK3Error as error:
            fault = fault_of(error)
            return httpx2.Response(fault.status, json=Messages().error(fault))


async def _streamed(asked: Asked, answer: Answer, model: ServedModel) -> list[Event]:
    stream = Messages().events(asked, model)
    events = list(stream.begin(answer.usage))
    async for piece in answer.pieces():
        events += stream.push(piece, answer.usage)
    return [*events, *stream.end(answer)]


@pytest.fixture
def dialect(model: ServedModel) -> Iterator[Callable[..., Dialect]]:
    """Make an endpoint whose model gives these answers: ``dialect("thought<|close|>think<|sep|>…", …)``."""
    made: list[Dialect] = []

    def make(*answers: str) -> Dialect:
        scripts = [spell(model.tokenizer, answer) for answer in answers]
        engine = ScriptedEngine(scripts, model.tokenizer.special.end_of_msg)
        made.append(Dialect(model, Script(engine, model.tokenizer, GenerationConfig(sampling=SAMPLING))))
        return made[-1]

    yield make
    for one in made:
        one.client.close()

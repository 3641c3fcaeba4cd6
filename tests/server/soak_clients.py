"""Clients for a soak: each request's answer is known beforehand, and what comes back must be that, in every dialect.

Unusual: some clients leave in the middle and some send nonsense; both are counted, so that a run shows what it did.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import httpx

from openk3 import LLM

WORDS = "the little boat went over a big blue lake and then it saw one old cat who could sing so well".split()
NONSENSE = [b"", b"{", b"[]", b'{"model": "nano"}', b"\xff", b"[" * 9000, b'{"model":"nano","messages":[{"role":1}]}']


@dataclass(frozen=True)
class Said:
    """An answer without its dialect."""

    reasoning: str
    content: str
    tokens: int


@dataclass(frozen=True)
class Case:
    """A request, and the answer that it has whatever else is asked meanwhile."""

    path: str
    body: dict[str, Any]
    said: Said


def cases(llm: LLM, count: int, seed: int = 0) -> list[Case]:
    """Make requests of all dialects with short and long prompts, greedy and seeded, and compute their answers."""
    rng = random.Random(seed)
    asked = [_ask(llm, rng, number) for number in range(count)]
    return [
        Case(
            path,
            body,
            Said((t := answer.finish().turn).reasoning or "", t.content or "", answer.usage.completion_tokens),
        )
        for path, body, answer in asked
    ]


def _ask(llm: LLM, rng: random.Random, number: int) -> tuple[str, dict[str, Any], Any]:
    text = " ".join(rng.choices(WORDS, k=rng.choice([3, 10, 40, 200, 900])))
    most, is_greedy = rng.choice([1, 5, 20, 60]), bool(number % 2)
    temperature, seed = (0.0, None) if is_greedy else (1.0, rng.randrange(2**32))
    path = list(_PATHS)[number // 2 % len(_PATHS)]
    if path == "/anthropic/v1/messages":  # it has no seeds
        temperature, seed = 0.0, None
    params = replace(llm.sampling, temperature=temperature, seed=seed, max_tokens=most)
    body: dict[str, Any] = {"model": "nano", "temperature": temperature, _LIMITS.get(path, "max_tokens"): most}
    if seed is not None:
        body["seed"] = seed
    if path == "/v1/completions":
        return path, {**body, "prompt": text}, llm.stream_text(text, params)
    thinking = rng.random() < 0.7
    body["thinking"] = {"type": "enabled" if thinking else "disabled"}
    messages = [{"role": "user", "content": text}]
    answer = llm.stream(messages, params=params, thinking=thinking)
    return path, {**body, "input" if path == "/v1/responses" else "messages": messages}, answer


def _of_chat(body: dict[str, Any]) -> Said:
    message = body["choices"][0]["message"]
    return Said(message.get("reasoning_content") or "", message["content"] or "", body["usage"]["completion_tokens"])


def _of_text(body: dict[str, Any]) -> Said:
    return Said("", body["choices"][0]["text"], body["usage"]["completion_tokens"])


def _of_response(body: dict[str, Any]) -> Said:
    texts = {"reasoning": "", "message": ""}
    for item in body["output"]:
        parts = item["summary"] if item["type"] == "reasoning" else item["content"]
        texts[item["type"]] += "".join(part["text"] for part in parts)
    return Said(texts["reasoning"], texts["message"], body["usage"]["output_tokens"])


def _of_message(body: dict[str, Any]) -> Said:
    parts = [(block.get("thinking", ""), block.get("text", "")) for block in body["content"]]
    return Said("".join(p[0] for p in parts), "".join(p[1] for p in parts), body["usage"]["output_tokens"])


_PATHS = {
    "/v1/chat/completions": _of_chat,
    "/v1/completions": _of_text,
    "/v1/responses": _of_response,
    "/anthropic/v1/messages": _of_message,
}
_LIMITS = {"/v1/responses": "max_output_tokens"}


def _added(said: Said, event: dict[str, Any]) -> Said:
    """Add what one event says."""
    choices = event.get("choices")
    if choices:
        delta = choices[0].get("delta", {})
        more = delta.get("reasoning_content") or "", delta.get("content") or choices[0].get("text") or ""
    else:
        delta, kind = event.get("delta", {}), event.get("type", "")
        texts = {"response.output_text.delta": (1, delta), "response.reasoning_summary_text.delta": (0, delta)}
        place, text = texts.get(kind, (1, ""))
        if kind == "content_block_delta":
            place, text = (0, delta["thinking"]) if "thinking" in delta else (1, delta.get("text", ""))
        more = ("", text) if place else (text, "")
    usage = event.get("usage") or event.get("response", {}).get("usage") or (choices[0].get("usage") if choices else {})
    tokens = (usage or {}).get("completion_tokens") or (usage or {}).get("output_tokens") or said.tokens
    return Said(said.reasoning + more[0], said.content + more[1], tokens)


async def _events(reply: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    async for line in reply.aiter_lines():
        if line.startswith("data: ") and line != "data: [DONE]":
            yield json.loads(line[6:])


class Client:
    """Asks one thing after another; ``counts`` says what happened, ``wrong`` what should not have."""

    def __init__(
        self, http: httpx.AsyncClient, known: Sequence[Case], seed: int, counts: Counter[str], wrong: list[str]
    ) -> None:
        self._http, self._known, self._counts, self._wrong = http, known, counts, wrong
        self._rng = random.Random(seed)

    async def run(self, stop: asyncio.Event) -> None:
        """Ask until ``stop``."""
        while not stop.is_set():
            do = self._rng.choices([self._whole, self._stream, self._leave, self._send_nonsense], [4, 4, 1, 1])[0]
            case = self._rng.choice(self._known)
            try:
                await do(case)
            except Exception as error:
                self._wrong.append(f"{do.__name__} {case.path}: {error!r}")

    async def _whole(self, case: Case) -> None:
        reply = await self._http.post(case.path, json=case.body)
        if self._require(reply.status_code == 200, reply.text):
            self._compare(case, _PATHS[case.path](reply.json()), "whole")

    async def _stream(self, case: Case) -> None:
        said = Said("", "", 0)
        async with self._http.stream("POST", case.path, json={**case.body, "stream": True}) as reply:
            if not self._require(reply.status_code == 200, "a stream"):
                return
            async for event in _events(reply):
                said = _added(said, event)
        self._compare(case, said, "streamed")

    async def _leave(self, case: Case) -> None:
        """Leave after some events, or before the first."""
        said, most = Said("", "", 0), self._rng.randrange(8)
        try:
            async with (
                asyncio.timeout(None if most else self._rng.random() / 20),
                self._http.stream("POST", case.path, json={**case.body, "stream": True}) as reply,
            ):
                async for event in _events(reply):
                    said = _added(said, event)
                    most -= 1
                    if not most:
                        break
        except TimeoutError:
            pass
        ok = case.said.reasoning.startswith(said.reasoning) and case.said.content.startswith(said.content)
        self._require(ok, f"{said} does not begin {case.said}")
        self._counts["left"] += 1

    async def _send_nonsense(self, case: Case) -> None:
        reply = await self._http.post(case.path, content=self._rng.choice(NONSENSE))
        self._require(400 <= reply.status_code < 500 and "error" in reply.json(), reply.text)
        self._counts["nonsense"] += 1

    def _compare(self, case: Case, said: Said, how: str) -> None:
        self._require(said == case.said, f"{how} {case.path}: {said}, expected {case.said}")
        self._counts[how] += 1
        self._counts["tokens"] += said.tokens

    def _require(self, is_so: bool, what: str) -> bool:
        if not is_so:
            self._wrong.append(what[:400])
        return is_so

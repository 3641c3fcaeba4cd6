"""Conversations from turns: system prompts, effort levels, tools, several questions in a row.

Unusual: one conversation mixes unrelated tasks, because the fixed opening (effort message, tool declaration) would
otherwise cost more tokens than the question.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from openk3.models.nano.recipe.dialogues import definitions, facts, lists, numbers, small_talk, stories, tools
from openk3.models.nano.recipe.dialogues.turn import EFFORTS, Effort, Task, Thinking, Turn
from openk3.models.nano.recipe.wordnet import WordNet
from openk3.protocol.messages import Message, ToolCall

_BRIEF_PROMPTS = ("Answer in one word.", "Answer with one word only.", "Be brief. Answer in one word.", "Use one word.")
_PLAIN_PROMPTS = (
    "You are a helpful assistant.",
    "You are nano, a small model.",
    "Answer in full sentences.",
    "Be polite.",
    "You are a friendly helper.",
)
_EVALUATION_TRIES = 60  # questions drawn per one wanted, of which one in 25 is held out


@dataclass(frozen=True, kw_only=True)
class Dialogue:
    """A conversation ready to be rendered; its last message is an assistant's."""

    messages: tuple[Message, ...]
    tools: tuple[dict[str, Any], ...]
    effort: Effort | None  # None: without thinking channel
    tasks: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return the dialogue as one JSON line holds it."""
        return {
            "messages": [_message_dict(message) for message in self.messages],
            "tools": list(self.tools),
            "effort": self.effort,
        }


def _message_dict(message: Message) -> dict[str, Any]:
    calls = [
        {"id": call.id, "function": {"name": call.name, "arguments": call.arguments}} for call in message.tool_calls
    ]
    raw = {
        "role": message.role,
        "content": message.content,
        "reasoning": message.reasoning,
        "tool_calls": calls,
        "tool_call_id": message.tool_call_id,
        "tool": message.tool,
    }
    return {key: value for key, value in raw.items() if value}


class Composer:
    """Compose dialogues for training, or single questions for evaluation, from one seed."""

    def __init__(self, wordnet: WordNet, seed: int) -> None:
        words, unknown = definitions.choose(wordnet)
        self.words = words
        plain = [word.word for word in words if len(word.word) < 8]
        self._tasks: dict[Task, float] = {
            **small_talk.TASKS,
            **numbers.TASKS,
            **facts.TASKS,
            **stories.TASKS,
            **lists.tasks(plain),
            **definitions.tasks(words, unknown),
        }
        self._rng = Random(seed)

    def training(self, count: int) -> Iterator[Dialogue]:
        """Yield ``count`` dialogues without any held-out question."""
        for _ in range(count):
            yield self._conversation()

    def evaluation(self, count: int, effort: Effort | None) -> Iterator[tuple[Turn, Dialogue]]:
        """Yield ``count`` held-out questions of every task, each in a dialogue of its own.

        A task of few questions gives fewer, or none.
        """
        for maker in (*self._tasks, *tools.TASKS):
            drawn = (maker(self._rng) for _ in range(count * _EVALUATION_TRIES))
            distinct = {turn.key: turn for turn in drawn if turn.held_out}
            for turn in list(distinct.values())[:count]:
                yield turn, _dialogue([turn], effort, None, turn.tools)

    def _conversation(self) -> Dialogue:
        rng = self._rng
        effort = rng.choices((*EFFORTS, None), (0.28, 0.28, 0.36, 0.08))[0]
        if rng.random() < 0.12:
            return self._with_tools(effort)
        turns = [self._any_turn(effort) for _ in range(rng.choices((1, 2, 3, 4, 5), (2, 2, 3, 3, 2))[0])]
        if rng.random() < 0.06:
            first, second = small_talk.named(rng)
            turns = [first, *turns[:3], second]
        brief = rng.random() < 0.1
        if brief:
            turns = [turn for turn in turns if turn.brief] or [self._draw([facts.opposite], [1.0])]
        prompt = rng.choice(_BRIEF_PROMPTS) if brief else rng.choice(_PLAIN_PROMPTS) if rng.random() < 0.15 else None
        return _dialogue([_in_one_word(turn) for turn in turns] if brief else turns, effort, prompt, ())

    def _with_tools(self, effort: Effort | None) -> Dialogue:
        rng = self._rng
        turns = [self._draw(list(tools.TASKS), list(tools.TASKS.values())) for _ in range(rng.choice((1, 1, 2)))]
        names = {turn.calls[0].tool for turn in turns}
        if len(names) < len(turns):
            turns = turns[:1]
        declared = [tool for turn in turns for tool in turn.tools]
        spare = self._draw(list(tools.TASKS), list(tools.TASKS.values()))
        if rng.random() < 0.4 and spare.calls[0].tool not in names:
            declared.append(spare.tools[0])
        rng.shuffle(declared)
        turns += [self._any_turn(effort) for _ in range(rng.choice((0, 1, 2)))]
        rng.shuffle(turns)
        return _dialogue(turns, effort, None, declared)

    def _any_turn(self, effort: Effort | None) -> Turn:
        if effort and self._rng.random() < 0.015:
            return small_talk.own_effort(self._rng, effort)
        return self._draw(list(self._tasks), list(self._tasks.values()))

    def _draw(self, makers: Sequence[Task], shares: Sequence[float]) -> Turn:
        """Draw a question that the evaluation does not ask."""
        turn = self._rng.choices(makers, shares)[0](self._rng)
        while turn.held_out:
            turn = self._rng.choices(makers, shares)[0](self._rng)
        return turn


def _in_one_word(turn: Turn) -> Turn:
    check = "The answer must be one word."
    thinking = Thinking(low=turn.thinking.low, steps=turn.thinking.steps, check=check)
    return replace(turn, answer=f"{turn.brief}", thinking=thinking)


def _dialogue(
    turns: Sequence[Turn], effort: Effort | None, prompt: str | None, declared: Sequence[dict[str, Any]]
) -> Dialogue:
    messages = [Message(role="system", content=prompt)] if prompt else []
    num_calls = 0
    for turn in turns:
        messages += _turn_messages(turn, effort, num_calls)
        num_calls += len(turn.calls)
    return Dialogue(
        messages=tuple(messages), tools=tuple(declared), effort=effort, tasks=tuple(turn.task for turn in turns)
    )


def _turn_messages(turn: Turn, effort: Effort | None, num_calls: int) -> list[Message]:
    thought = turn.thinking.at(effort) if effort else None
    messages = [Message(role="user", content=turn.question)]
    for call in turn.calls:
        # the parser numbers the calls of a conversation from 0, and so does the identifier
        identifier = f"{call.tool}:{num_calls}"
        calls = (ToolCall(id=identifier, name=call.tool, arguments=call.arguments),)
        messages += [
            Message(role="assistant", content="", reasoning=thought, tool_calls=calls),
            Message(role="tool", content=call.result, tool_call_id=identifier, tool=call.tool),
        ]
        thought = call.reading if effort else None
    messages.append(Message(role="assistant", content=turn.answer, reasoning=thought))
    return messages

"""Measure a model on questions that training never saw: the share of answers that are right to the letter, by task.

Unusual: greedy decoding, and nothing is forgiven; an answer in other words counts as wrong.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from openk3.chat.parse import StreamParser, collect
from openk3.chat.render import render
from openk3.checkpoint.loader import load_model
from openk3.engine.config import EngineConfig
from openk3.engine.engine import Engine
from openk3.models.nano.recipe.dialogues.compose import Composer, Dialogue
from openk3.models.nano.recipe.dialogues.turn import EFFORTS, Effort, Turn
from openk3.models.nano.recipe.wordnet import WordNet
from openk3.protocol.messages import AssistantTurn
from openk3.protocol.request import Request
from openk3.protocol.sampling import FinishReason, SamplingParams
from openk3.tokenizer.bpe import Tokenizer

EVALUATION_SEED = 1002
_LONGEST_ANSWER = 256


@dataclass(frozen=True, kw_only=True)
class Answered:
    """What the model said to one question, and in how many tokens it thought."""

    task: str
    effort: Effort
    question: str
    expected: str
    answer: str
    right: bool
    thinking_tokens: int


class Examiner:
    """Asks a model, one question after another."""

    def __init__(self, folder: Path) -> None:
        self._tokenizer = Tokenizer.load(folder)
        model = load_model(folder, dtype=torch.float32, experts="plain").eval()
        self._engine = Engine(model, EngineConfig(max_running=1), stop_token_ids={self._tokenizer.special.end_of_msg})

    def ask(self, turn: Turn, dialogue: Dialogue, effort: Effort) -> Answered:
        """Ask one question and compare; a question that needs a tool is right if the call is."""
        prompt = render(dialogue.messages[:1], tokenizer=self._tokenizer, tools=dialogue.tools, effort=effort)
        parser = StreamParser(self._tokenizer, channel=prompt.channel, tools_declared=bool(dialogue.tools))
        params = SamplingParams(temperature=0.0, max_tokens=_LONGEST_ANSWER)
        outputs = list(self._engine.submit(Request(prompt_ids=prompt.ids, params=params)))
        deltas = parser.push([output.token_id for output in outputs])
        reason: FinishReason = "stop" if outputs[-1].finish_reason == "stop" else "length"
        said = collect([*deltas, *parser.finish(reason)], reason)
        return Answered(
            task=turn.task,
            effort=effort,
            question=turn.question,
            expected=_expected(turn),
            answer=_shown(said),
            right=_shown(said) == _expected(turn),
            thinking_tokens=len(self._tokenizer.encode(said.reasoning or "")),
        )


def evaluate(folder: Path, sources: Path, per_task: int) -> list[Answered]:
    """Ask ``per_task`` held-out questions of every task at each effort level."""
    examiner, wordnet = Examiner(folder), WordNet(sources)
    results = []
    for effort in EFFORTS:
        composer = Composer(wordnet, EVALUATION_SEED)
        results += [examiner.ask(turn, dialogue, effort) for turn, dialogue in composer.evaluation(per_task, effort)]
    return results


def summary(results: Sequence[Answered]) -> dict[str, Any]:
    """Return the share of right answers by task and effort, and the mean length of thinking by effort."""
    tasks = sorted({result.task for result in results})
    return {
        "seed": EVALUATION_SEED,
        "right": {task: {effort: _share(results, task, effort) for effort in EFFORTS} for task in tasks},
        "overall": {effort: _share(results, None, effort) for effort in EFFORTS},
        "thinking_tokens": {effort: _mean_thinking(results, effort) for effort in EFFORTS},
    }


def _share(results: Sequence[Answered], task: str | None, effort: Effort) -> list[int]:
    """Return how many were right, of how many."""
    chosen = [result for result in results if result.effort == effort and task in (None, result.task)]
    return [sum(result.right for result in chosen), len(chosen)]


def _mean_thinking(results: Sequence[Answered], effort: Effort) -> float:
    lengths = [result.thinking_tokens for result in results if result.effort == effort]
    return round(sum(lengths) / max(1, len(lengths)), 1)


def _expected(turn: Turn) -> str:
    return "; ".join(_call_text(call.tool, call.arguments) for call in turn.calls) or turn.answer


def _shown(said: AssistantTurn) -> str:
    """Return the calls if there are any, else the response."""
    calls = [_call_text(call.name, call.arguments) for call in said.tool_calls]
    return "; ".join(calls) or (said.content or "")


def _call_text(name: str, arguments: Mapping[str, Any] | str | None) -> str:
    """Return a call in one notation, whether its arguments are an object or the text of one."""
    try:
        arguments = json.loads(arguments) if isinstance(arguments, str) else arguments or {}
    except json.JSONDecodeError:
        return f"{name}({arguments})"  # cut off: shown as it is, and equal to nothing that was expected
    return f"{name}({json.dumps(arguments, ensure_ascii=False)})"

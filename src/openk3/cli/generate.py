"""``openk3 generate``: one answer for scripts. The answer on stdout, thinking on stderr."""

from __future__ import annotations

import sys
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from openk3.cli.constraints import ConstraintFlags, Constraints
from openk3.cli.errors import UsageError
from openk3.cli.flags import DType, EngineFlags, EngineSettings, Sampling, SamplingFlags, Switch, choose_effort
from openk3.cli.text_input import check_text, read_all
from openk3.errors import ConfigError
from openk3.protocol.messages import Message
from openk3.protocol.sampling import SamplingParams

if TYPE_CHECKING:
    from openk3.llm.answer import Answer
    from openk3.llm.llm import LLM


def generate(
    model: str,
    /,
    *,
    prompt: str | None = None,
    system: str | None = None,
    effort: str | None = None,
    thinking: bool = True,
    raw: Switch = False,
    json: Switch = False,
    n: int = 1,
    top_logprobs: int = 0,
    constraints: Constraints = ConstraintFlags(),
    sampling: Sampling = SamplingFlags(),
    engine: EngineSettings = EngineFlags(),
    dtype: DType = "bfloat16",
) -> None:
    """Write one answer, for scripts.

    Parameters
    ----------
    model
        A folder in the published layout, or a bundled name: nano.
    prompt
        What to answer; read from stdin if not given.
    system
        A system message before the prompt.
    effort
        How long to think: low, high or max (if not given).
    thinking
        Think before answering.
    raw
        Continue the prompt as plain text, without the chat format.
    json
        Print one JSON object: reasoning, content, tool_calls, usage, finish_reason.
    n
        How many answers, each with its own seed; with --json, one object a line.
    top_logprobs
        With --json, list the log-probability of each token and of this many likeliest ones.
    dtype
        What activations and dense weights are computed in.
    """
    if raw:
        _check_raw(chat=system is not None or effort is not None or not thinking, constraints=constraints.are_given)
    if n < 1:
        raise UsageError(f"--n is {n}, expected at least 1")
    options = {"effort": choose_effort(effort, thinking=thinking), "thinking": thinking, **constraints.options()}
    if top_logprobs and not json:
        raise UsageError("--top-logprobs is given without --json, which shows them", hint="add --json")
    own = _with_logprobs(SamplingParams(), top_logprobs)
    sampling.over(own)  # wrong values are said before a model is loaded
    engine.settings()
    check_text(system, "--system")
    text = _read_prompt(prompt)

    from openk3.cli.session import load

    with load(model, dtype, engine) as llm:
        params = sampling.over(_with_logprobs(llm.sampling, top_logprobs))
        for answer in _ask(llm, text, params, n, raw=raw, system=system, options=options):
            _print_object(answer, llm if top_logprobs else None) if json else _print_text(answer)


def _with_logprobs(params: SamplingParams, count: int) -> SamplingParams:
    try:
        return replace(params, top_logprobs=count)
    except ConfigError as error:
        raise UsageError(error.message, hint=error.hint) from None


def _check_raw(*, chat: bool, constraints: bool) -> None:
    if chat:
        raise UsageError(
            "--raw continues plain text, but --system, --effort and --no-thinking belong to the chat format",
            hint="leave out one or the other",
        )
    if constraints:
        raise UsageError(
            "--raw continues plain text, but formats and tools belong to the chat format",
            hint="leave out one or the other",
        )


def _read_prompt(prompt: str | None) -> str:
    if prompt is None and sys.stdin.isatty():
        raise UsageError("there is no prompt", hint="give one with --prompt TEXT, or on stdin")
    text = read_all() if prompt is None else prompt
    check_text(text, "--prompt")
    if not text:
        raise UsageError("the prompt is empty, expected some text", hint="give one with --prompt TEXT, or on stdin")
    return text


def _ask(
    llm: LLM,
    text: str,
    params: SamplingParams,
    count: int,
    *,
    raw: bool,
    system: str | None,
    options: dict[str, Any],
) -> list[Answer]:
    if raw:
        return llm.stream_text_many(text, params, n=count)
    from openk3.cli.session import opening

    return llm.stream_many([*opening(system), Message(role="user", content=text)], n=count, params=params, **options)


def _print_text(answer: Answer) -> None:
    from openk3.cli.answer_printer import AnswerPrinter
    from openk3.cli.json_lines import json_text
    from openk3.cli.terminal import EMPTY_ANSWER, note

    printer = AnswerPrinter(sys.stdout, sys.stderr)
    try:
        for delta in answer:
            printer.show(delta)
    finally:
        printer.close()
    turn = answer.turn
    for call in turn.tool_calls:
        print(json_text(asdict(call), sys.stdout))
    if turn.finish_reason == "length":
        note(f"(stopped at the limit, after {answer.usage.completion_tokens} tokens)")
    elif not turn.content and not turn.tool_calls:
        note(EMPTY_ANSWER)


def _print_object(answer: Answer, with_logprobs: LLM | None) -> None:
    from openk3.cli.json_lines import answer_object, json_text, logprob_objects

    answer.finish()
    item = answer_object(answer.turn, answer.usage)
    if with_logprobs is not None:
        tokenizer = with_logprobs.tokenizer
        item["logprobs"] = logprob_objects(answer.tokens, lambda token: tokenizer.decode([token]))
    print(json_text(item, sys.stdout))

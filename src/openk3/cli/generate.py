"""``openk3 generate``: one answer for scripts. The answer on stdout, thinking on stderr."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from openk3.cli.errors import UsageError
from openk3.cli.flags import DType, Sampling, SamplingFlags, Switch, choose_effort
from openk3.cli.text_input import check_text, read_all
from openk3.protocol.sampling import SamplingParams

if TYPE_CHECKING:
    from openk3.cli.session import Answer


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
    sampling: Sampling = SamplingFlags(),
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
    dtype
        What activations and dense weights are computed in.
    """
    if raw and (system is not None or effort is not None or not thinking):
        raise UsageError(
            "--raw continues plain text, but --system, --effort and --no-thinking belong to the chat format",
            hint="leave out one or the other",
        )
    level = choose_effort(effort, thinking=thinking)
    sampling.over(SamplingParams())  # wrong values are said before a model is loaded
    check_text(system, "--system")
    text = _read_prompt(prompt)

    from openk3.cli.session import Conversation, continue_text, load

    loaded = load(model, dtype)
    params = sampling.over(loaded.generation.sampling)
    if raw:
        answer = continue_text(loaded, text, params)
    else:
        answer = Conversation(loaded, params, system=system, effort=level, thinking=thinking).ask(text)
    _print_object(answer) if json else _print_text(answer)


def _read_prompt(prompt: str | None) -> str:
    if prompt is None and sys.stdin.isatty():
        raise UsageError("there is no prompt", hint="give one with --prompt TEXT, or on stdin")
    text = read_all() if prompt is None else prompt
    check_text(text, "--prompt")
    if not text:
        raise UsageError("the prompt is empty, expected some text", hint="give one with --prompt TEXT, or on stdin")
    return text


def _print_text(answer: Answer) -> None:
    from openk3.cli.answer_printer import AnswerPrinter
    from openk3.cli.terminal import EMPTY_ANSWER, note

    printer = AnswerPrinter(sys.stdout, sys.stderr)
    try:
        for delta in answer:
            printer.show(delta)
    finally:
        printer.close()
    if answer.turn.finish_reason == "length":
        note(f"(stopped at the limit, after {answer.usage.completion_tokens} tokens)")
    elif not answer.turn.content:
        note(EMPTY_ANSWER)


def _print_object(answer: Answer) -> None:
    from openk3.cli.json_lines import answer_object, json_text

    for _ in answer:
        pass
    print(json_text(answer_object(answer.turn, answer.usage), sys.stdout))

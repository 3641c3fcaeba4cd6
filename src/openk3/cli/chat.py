"""``openk3 chat``: a conversation in the terminal, or line by line through a pipe.

Unusual: Ctrl-C ends the answer, not the program, and what was shown of it stays in the conversation.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from typing import TYPE_CHECKING

from openk3.cli.errors import UsageError, report
from openk3.cli.flags import (
    DType,
    EngineFlags,
    EngineSettings,
    Sampling,
    SamplingFlags,
    Switch,
    choose_effort,
    parse_effort,
)
from openk3.cli.text_input import check_text, read_lines
from openk3.errors import OpenK3Error
from openk3.protocol.sampling import SamplingParams

if TYPE_CHECKING:
    from openk3.cli.answer_printer import AnswerPrinter
    from openk3.cli.json_lines import JsonLinesPrinter
    from openk3.cli.session import Conversation
    from openk3.llm.answer import Answer

_COMMANDS = {
    "/help": "show this list",
    "/effort": "LEVEL: think low, high or max from now on",
    "/stats": "tokens and speed of the last answer",
    "/reset": "forget the conversation",
    "/exit": "leave (so does Ctrl-D)",
}


def chat(
    model: str = "nano",
    /,
    *,
    system: str | None = None,
    effort: str | None = None,
    thinking: bool = True,
    json: Switch = False,
    sampling: Sampling = SamplingFlags(),
    engine: EngineSettings = EngineFlags(),
    dtype: DType = "bfloat16",
) -> None:
    """Talk to a model in this terminal.

    Parameters
    ----------
    model
        A folder in the published layout, or a bundled name: nano.
    system
        A system message before the conversation.
    effort
        How long to think: low, high or max (if not given).
    thinking
        Think before answering.
    json
        Print JSON lines, one object per piece of an answer, for programs.
    dtype
        What activations and dense weights are computed in.
    """
    level = choose_effort(effort, thinking=thinking)
    check_text(system, "--system")
    sampling.over(SamplingParams())  # wrong values are said before a model is loaded
    engine.settings()

    from openk3.cli.answer_printer import AnswerPrinter
    from openk3.cli.json_lines import JsonLinesPrinter
    from openk3.cli.session import Conversation, load
    from openk3.cli.terminal import note

    with load(model, dtype, engine) as llm:
        note(llm.about)
        params = sampling.over(llm.sampling)
        conversation = Conversation(llm, params, system=system, effort=level, thinking=thinking)
        printer = JsonLinesPrinter(sys.stdout) if json else AnswerPrinter(sys.stdout, sys.stderr)
        _Chat(conversation, printer, interactive=sys.stdin.isatty()).run()


class _Chat:
    """The loop: lines in, answers and commands out."""

    def __init__(
        self, conversation: Conversation, printer: AnswerPrinter | JsonLinesPrinter, *, interactive: bool
    ) -> None:
        self._conversation = conversation
        self._printer = printer
        self._interactive = interactive
        self._last: Answer | None = None

    def run(self) -> None:
        """Take turns until the input ends or says /exit."""
        if self._interactive:
            self._say("/help lists commands, Ctrl-C stops an answer, Ctrl-D leaves")
        for line in _typed_lines() if self._interactive else read_lines():
            text = line.strip()
            if text == "/exit":
                return
            try:
                self._turn(text)
            except OpenK3Error as error:
                if not self._interactive:
                    raise
                report(error.message, error.hint)

    def _turn(self, text: str) -> None:
        if text.startswith("//"):
            self._answer(text[1:])
        elif text.startswith("/"):
            self._command(*text.split(maxsplit=1))
        elif text:
            self._answer(text)

    def _answer(self, text: str) -> None:
        self._last = answer = self._conversation.ask(text)
        try:
            self._show(answer)
        except KeyboardInterrupt:
            if not self._interactive:
                raise
        finally:
            self._printer.close()
        turn = answer.turn
        self._conversation.keep(text, turn)
        self._close(answer)

    def _show(self, answer: Answer) -> None:
        from openk3.cli.interrupt import first_interrupt

        with first_interrupt(answer.cancel) if self._interactive else nullcontext():
            for delta in answer:
                self._printer.show(delta)

    def _close(self, answer: Answer) -> None:
        from openk3.cli.json_lines import JsonLinesPrinter
        from openk3.cli.terminal import EMPTY_ANSWER

        if isinstance(self._printer, JsonLinesPrinter):
            self._printer.end(answer.turn, answer.usage)
        elif answer.turn.finish_reason is None:
            self._say("(stopped)")
        elif answer.turn.finish_reason == "length":
            self._say(f"(stopped at the limit, after {answer.usage.completion_tokens} tokens)")
        elif not answer.turn.content:
            self._say(EMPTY_ANSWER)

    def _command(self, name: str, argument: str = "") -> None:
        if name == "/help":
            self._say("\n".join(f"{command:<8} {text}" for command, text in _COMMANDS.items()))
            self._say("//text   send /text")
        elif name == "/reset":
            self._conversation.reset()
            self._say("(a new conversation)")
        elif name == "/stats":
            self._say("(there is no answer yet)" if self._last is None else _stats(self._last))
        elif name == "/effort":
            self._set_effort(argument)
        else:
            near = difflib.get_close_matches(name, _COMMANDS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"to send it as text, write /{name}"
            raise UsageError(f"{name} is not a command, expected {', '.join(_COMMANDS)}", hint=hint)

    def _set_effort(self, argument: str) -> None:
        if argument:
            self._conversation.effort = parse_effort(argument)
        self._say(f"(effort: {self._conversation.effort})")

    @staticmethod
    def _say(text: str) -> None:
        from openk3.cli.terminal import note

        note(text)


def _stats(answer: Answer) -> str:
    """Say what an answer cost; its speed is that of writing, from the first token on."""
    usage, stats = answer.usage, answer.stats
    text = (
        f"{usage.prompt_tokens} tokens read ({usage.cached_tokens} from the cache), {usage.completion_tokens} written"
    )
    if stats is None or stats.first_token_s is None or stats.completion_tokens < 2:
        return f"({text})"
    speed = (stats.completion_tokens - 1) / max(stats.total_s - stats.first_token_s, 1e-9)
    return f"({text}, {speed:.1f} tokens per second)"


def _typed_lines() -> Iterator[str]:
    """Read lines at a prompt, with history, until Ctrl-D or two Ctrl-C in a row."""
    import readline  # noqa: F401  (its import is what gives `input` editing and history)

    pressed = False
    while True:
        try:
            yield _ask()
            pressed = False
        except EOFError:
            print(file=sys.stderr)
            return
        except KeyboardInterrupt:
            print(file=sys.stderr)
            if pressed:
                return
            pressed = True
            print("(Ctrl-C again, or Ctrl-D, leaves)", file=sys.stderr)


def _ask() -> str:
    prompt = "> "
    if not sys.stdout.isatty():  # there it would become part of the answers
        print(prompt, end="", file=sys.stderr, flush=True)
        prompt = ""
    return input(prompt)

"""``openk3 chat``: turns through a pipe, and in a terminal with keys."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from openk3.cli import session
from openk3.cli.main import run
from tests.cli.pseudo_terminal import Terminal
from tests.cli.scripted import Script, answer


@pytest.fixture
def piped(scripted: Callable[..., Script], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Script]:
    """Run a conversation through a pipe: ``piped(lines, answers, *flags)``."""

    def make(lines: str, answers: list[str], *flags: str, code: int = 0) -> Script:
        script = scripted(*answers)
        monkeypatch.setattr(session, "load", lambda *_: script.llm)
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines.encode())))
        assert run(["chat", "any", *flags]) == code
        return script

    return make


def test_each_line_is_a_turn(piped: Callable[..., Script], capsys: pytest.CaptureFixture[str]) -> None:
    script = piped("Hi\n\n  \nAnd?\n", [answer("Hm.", "Hello!"), answer("", "Bye!")])
    out, err = capsys.readouterr()
    assert out == "Hello!\nBye!\n"
    assert err == "scripted\n[thinking] Hm.\n"
    assert "Hello!" in script.prompts[1]


def test_commands(piped: Callable[..., Script], capsys: pytest.CaptureFixture[str]) -> None:
    lines = "/effort low\nHi\n/effort\n/reset\n//exit\n/help\n/exit\nnever\n"
    script = piped(lines, [answer("", "a"), answer("", "b")])
    out, err = capsys.readouterr()
    assert out == "a\nb\n"
    assert err.count("(effort: low)\n") == 2
    assert "/reset   forget the conversation" in err
    assert "thinking_effort=low" in script.prompts[0]
    assert ">/exit<" in script.prompts[1].replace("<|sep|>", ">")
    assert "Hi" not in script.prompts[1]


def test_stats_are_those_of_the_last_answer(piped: Callable[..., Script], capsys: pytest.CaptureFixture[str]) -> None:
    script = piped("/stats\nHi\n/stats\n", [answer("", "a")])
    err = capsys.readouterr().err
    assert "(there is no answer yet)\n" in err
    read = f"{script.num_prompt_tokens} tokens read (16 from the cache)"
    assert f"({read}, 38 written, 2.0 tokens per second)\n" in err


def test_the_second_turn_goes_on_from_the_first(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = b"What is the capital of France?\nAnd what is 3 + 4?\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines)))
    assert run(["chat", "nano", "--json", "--temperature", "0", "--max-tokens", "40", "--memory", "1GB"]) == 0
    ends = [json.loads(line) for line in capsys.readouterr().out.splitlines() if '"type": "end"' in line]
    first, second = (end["usage"] for end in ends)
    assert first["cached_tokens"] == 0
    assert second["cached_tokens"] > 64


def test_an_effort_without_thinking_is_bad_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["chat", "no such model", "--effort", "low", "--no-thinking"]) == 2
    assert "--effort says how long to think, but --no-thinking leaves that out" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "/rest",
            "/rest is not a command, expected /help, /effort, /stats, /reset, /exit\n\nhint: did you mean /reset?",
        ),
        ("/12", "hint: to send it as text, write //12"),
        ("/effort medium", "error: effort is 'medium', expected low, high or max"),
    ],
)
def test_a_wrong_command_ends_a_pipe(
    line: str, message: str, piped: Callable[..., Script], capsys: pytest.CaptureFixture[str]
) -> None:
    piped(f"{line}\nHi\n", [answer("", "never")], code=2)
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err


def test_json_lines(piped: Callable[..., Script], capsys: pytest.CaptureFixture[str]) -> None:
    script = piped("Hi\n", [answer("Hm", "é")], "--json")
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [
        {"type": "reasoning", "text": "H"},
        {"type": "reasoning", "text": "m"},
        {"type": "content", "text": "é"},
        {
            "type": "end",
            "finish_reason": "stop",
            "usage": {
                "prompt_tokens": script.num_prompt_tokens,
                "completion_tokens": 41,
                "cached_tokens": 16,
                "reasoning_tokens": 2,
            },
        },
    ]


def test_the_system_message_and_thinking_switch(piped: Callable[..., Script]) -> None:
    script = piped("Hi\n", ["a<|close|>response<|sep|><|end_of_msg|>"], "--no-thinking", "--system", "Be kind.")
    assert "Be kind." in script.prompts[0]
    assert "thinking_effort" not in script.prompts[0]


def test_input_that_is_not_text(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(session, "load", lambda *_: pytest.fail("loaded for nothing"))
    assert run(["chat", "any", "--system", "\udcff"]) == 2
    assert "--system is not UTF-8" in capsys.readouterr().err


def chat(terminal: Callable[..., Terminal], model: Path, *flags: str, **environment: str) -> Terminal:
    started = terminal(["-m", "openk3.cli.main", "chat", str(model), "--top-k", "50", *flags], **environment)
    started.wait_for("parameters, bfloat16 on cpu")
    started.wait_for("> ")
    return started


def test_ctrl_c_stops_the_answer_and_not_the_program(terminal: Callable[..., Terminal], tiny_model: Path) -> None:
    # The tiny model's answers never end: that the prompt comes back is Ctrl-C's doing.
    talk = chat(terminal, tiny_model)
    talk.press("Hello\n")
    talk.wait_for("\x1b[2m")
    talk.press("\x03")
    talk.wait_for("(stopped)")
    talk.wait_for("> ")
    talk.press("And again\n")
    talk.wait_for("\x1b[2m")
    talk.press("\x03")
    talk.wait_for("(stopped)")
    talk.wait_for("> ")
    talk.press("\x04")
    assert talk.exit_code() == 0
    assert "Traceback" not in talk.shown


def test_ctrl_c_at_the_prompt_warns_once_and_then_leaves(terminal: Callable[..., Terminal], tiny_model: Path) -> None:
    talk = chat(terminal, tiny_model)
    talk.interrupt()
    talk.wait_for("(Ctrl-C again, or Ctrl-D, leaves)")
    talk.wait_for("> ")
    talk.press("/help\n")  # another line: the count begins anew
    talk.wait_for("send /text")
    talk.wait_for("> ")
    talk.interrupt()
    talk.wait_for("(Ctrl-C again, or Ctrl-D, leaves)")
    talk.wait_for("> ")
    talk.interrupt()
    assert talk.exit_code() == 0


def test_mistakes_at_the_prompt_do_not_end_the_conversation(
    terminal: Callable[..., Terminal], tiny_model: Path
) -> None:
    talk = chat(terminal, tiny_model)
    talk.press("/effort medium\n")
    talk.wait_for("effort is 'medium'")
    talk.wait_for("> ")
    talk.press("/exit\n")
    assert talk.exit_code() == 0


def test_history_brings_lines_back(terminal: Callable[..., Terminal], tiny_model: Path) -> None:
    talk = chat(terminal, tiny_model)
    talk.press("/effort low\n")
    talk.wait_for("(effort: low)")
    talk.wait_for("> ")
    talk.press("\x1b[A\n")
    talk.wait_for("(effort: low)")
    talk.wait_for("> ")
    talk.press("\x04")
    assert talk.exit_code() == 0


def test_without_colour_nothing_is_styled(terminal: Callable[..., Terminal], tiny_model: Path) -> None:
    talk = chat(terminal, tiny_model, "--max-tokens", "5", NO_COLOR="1")
    talk.press("Hello\n")
    shown = talk.wait_for("(stopped at the limit, after 5 tokens)")
    assert "[thinking] " in shown
    assert "\x1b[2m" not in shown
    talk.wait_for("> ")
    talk.press("\x04")
    assert talk.exit_code() == 0

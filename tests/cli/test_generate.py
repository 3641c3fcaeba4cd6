"""``openk3 generate``: what goes where, from prompt and flags to stdout, stderr and JSON."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from openk3.cli import session
from openk3.cli.main import run
from openk3.cli.terminal import EMPTY_ANSWER
from tests.cli.scripted import Script, answer


@pytest.fixture
def says(scripted: Callable[..., Script], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Script]:
    """Make every model that is loaded say what the test wants."""

    def make(*answers: str) -> Script:
        script = scripted(*answers)
        monkeypatch.setattr(session, "load", lambda name, dtype: script.loaded)
        return script

    return make


def type_in(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


def test_the_answer_on_stdout_and_thinking_on_stderr(
    says: Callable[..., Script], capsys: pytest.CaptureFixture[str]
) -> None:
    script = says(answer("Hm.", "Hello!"))
    assert run(["generate", "any", "--prompt", "Hi", "--system", "Be kind.", "--effort", "low"]) == 0
    assert capsys.readouterr() == ("Hello!\n", "[thinking] Hm.\n")
    assert "Be kind." in script.prompts[0] and "thinking_effort=low" in script.prompts[0]


def test_an_answer_without_text_is_said(says: Callable[..., Script], capsys: pytest.CaptureFixture[str]) -> None:
    says(answer("Hm.", ""))
    assert run(["generate", "any", "--prompt", "Hi"]) == 0
    shown = capsys.readouterr()
    assert shown.out == "" and EMPTY_ANSWER in shown.err


def test_the_prompt_may_come_from_stdin(says: Callable[..., Script], monkeypatch: pytest.MonkeyPatch) -> None:
    script = says(answer("", "Hello!"))
    type_in(monkeypatch, "Grüße,\nzwei Zeilen\n".encode())
    assert run(["generate", "any"]) == 0
    assert '<|open|>message role="user"<|sep|>Grüße,\nzwei Zeilen<|close|>' in script.prompts[0]


def test_json(says: Callable[..., Script], capsys: pytest.CaptureFixture[str]) -> None:
    script = says(answer("Hm.", "Grüße!"))
    assert run(["generate", "any", "--prompt", "Hi", "--json"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert json.loads(out) == {
        "reasoning": "Hm.",
        "content": "Grüße!",
        "tool_calls": [],
        "finish_reason": "stop",
        "usage": {"prompt_tokens": len(script.model.prompts[0]) - 3, "completion_tokens": 3 + 8 + 37},
    }


def test_without_thinking(says: Callable[..., Script], capsys: pytest.CaptureFixture[str]) -> None:
    says("Hello!<|close|>response<|sep|><|end_of_msg|>")
    assert run(["generate", "any", "--prompt", "Hi", "--no-thinking"]) == 0
    assert capsys.readouterr() == ("Hello!\n", "")


def test_stop_strings_and_limits(says: Callable[..., Script], capsys: pytest.CaptureFixture[str]) -> None:
    says(answer("", "one two three"), answer("a long thought", ""))
    assert run(["generate", "any", "--prompt", "Hi", "--stop", "never", "--stop", " two"]) == 0
    assert capsys.readouterr() == ("one\n", "")
    assert run(["generate", "any", "--prompt", "Hi", "--max-tokens", "6"]) == 0
    assert capsys.readouterr() == ("", "[thinking] a long\n(stopped at the limit, after 6 tokens)\n")


def test_raw_continues_text(says: Callable[..., Script], capsys: pytest.CaptureFixture[str]) -> None:
    script = says(" a time<|end_of_msg|>")
    assert run(["generate", "any", "--raw", "--prompt", "Once upon"]) == 0
    assert capsys.readouterr() == (" a time\n", "")
    assert script.prompts == ["Once upon"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--prompt", ""], "the prompt is empty"),
        (["--prompt", "x", "--effort", "medium"], "effort is 'medium', expected low, high or max: the chat template"),
        (["--prompt", "x", "--raw", "--effort", "low"], "--raw continues plain text"),
        (["--prompt", "x", "--raw", "--no-thinking"], "--raw continues plain text"),
        (["--prompt", "x", "--raw", "--system", "y"], "--raw continues plain text"),
        (["--prompt", "x", "--effort", "low", "--no-thinking"], "--no-thinking leaves that out"),
        (["--prompt", "x", "--temperature", "-1"], "temperature is -1.0"),
        (["--prompt", "x", "--max-tokens", "0"], "max_tokens is 0"),
        (["--prompt", "x", "--stop", ""], "stop holds an empty string"),
        (["--prompt", "\udcff"], "--prompt is not UTF-8"),
    ],
)
def test_bad_usage_is_said_before_a_model_is_loaded(
    flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["generate", "no such model", *flags]) == 2
    out, err = capsys.readouterr()
    assert (out, err[:7]) == ("", "error: ")
    assert message in err


def test_a_terminal_without_a_prompt_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    assert run(["generate", "any"]) == 2
    assert capsys.readouterr().err == "error: there is no prompt\n\nhint: give one with --prompt TEXT, or on stdin\n"


def generate(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    program = [sys.executable, "-m", "openk3.cli.main", "generate", *arguments]
    return subprocess.run(program, stdin=subprocess.DEVNULL, capture_output=True, timeout=120, check=False)


def test_a_real_model_from_its_files(tiny_model: Path) -> None:
    flags = ["--prompt", "Hi", "--seed", "3", "--max-tokens", "20", "--json"]
    runs = [generate(str(tiny_model), *flags) for _ in range(2)]
    assert [(done.returncode, done.stderr) for done in runs] == [(0, b"")] * 2
    assert runs[0].stdout == runs[1].stdout
    assert json.loads(runs[0].stdout)["usage"]["completion_tokens"] == 20


def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    done = generate(str(tmp_path / "nothing"), "--prompt", "Hi")
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.startswith(b"error: ") and b"Traceback" not in done.stderr

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
        monkeypatch.setattr(session, "load", lambda *_: script.llm)
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
        "usage": {
            "prompt_tokens": script.num_prompt_tokens,
            "completion_tokens": 3 + 8 + 37,
            "cached_tokens": 16,
            "reasoning_tokens": 3,
        },
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


def test_several_answers_each_with_its_own_seed(
    says: Callable[..., Script], capsys: pytest.CaptureFixture[str]
) -> None:
    script = says(answer("", "one"), answer("", "two"))
    assert run(["generate", "any", "--prompt", "Hi", "--n", "2", "--seed", "5", "--json"]) == 0
    assert [json.loads(line)["content"] for line in capsys.readouterr().out.splitlines()] == ["one", "two"]
    assert [request.params.seed for request in script.engine.requests] == [5, 6]


def test_several_continuations_of_a_text(says: Callable[..., Script], capsys: pytest.CaptureFixture[str]) -> None:
    says(" one<|end_of_msg|>", " two<|end_of_msg|>")
    assert run(["generate", "any", "--raw", "--prompt", "Hi", "--n", "2"]) == 0
    assert capsys.readouterr().out == " one\n two\n"


TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
CALL = (
    "<|close|>think<|sep|><|open|>response<|sep|><|close|>response<|sep|><|open|>tools<|sep|>"
    '<|open|>call tool="look" index="1"<|sep|><|close|>call<|sep|><|close|>tools<|sep|>'
    "<|close|>message<|sep|><|end_of_msg|>"
)


def test_a_call_is_printed_as_a_line(
    says: Callable[..., Script], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = says(CALL)
    (tmp_path / "tools.json").write_text(json.dumps([TOOL]), encoding="utf-8")
    flags = ["--tools", str(tmp_path / "tools.json"), "--tool-choice", "look"]
    assert run(["generate", "any", "--prompt", "Hi", *flags]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out) == {"id": "look_0", "name": "look", "arguments": "{}"}
    assert err == ""
    assert script.engine.requests[0].grammar is not None


@pytest.mark.parametrize(
    "flags",
    [["--json-object"], ["--regex", "[ab]+"], ["--json-schema", "FILE"], ["--json-schema", '{"type": "object"}']],
    ids=" ".join,
)
def test_a_format_becomes_a_grammar(flags: list[str], says: Callable[..., Script], tmp_path: Path) -> None:
    script = says(answer("", "a"), answer("", "a"))
    (tmp_path / "schema.json").write_text('{"type": "object"}', encoding="utf-8")
    named = [str(tmp_path / "schema.json") if flag == "FILE" else flag for flag in flags]
    assert run(["generate", "any", "--prompt", "Hi", *named]) == 0
    assert run(["generate", "any", "--prompt", "Hi"]) == 0
    assert [request.grammar is None for request in script.engine.requests] == [False, True]


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
        (["--prompt", "x", "--min-p", "2"], "min_p is 2.0"),
        (["--prompt", "x", "--n", "0"], "--n is 0"),
        (["--prompt", "x", "--top-logprobs", "2"], "--top-logprobs is given without --json"),
        (["--prompt", "x", "--json", "--top-logprobs", "21"], "top_logprobs is 21, expected a number from 0 to 20"),
        (["--prompt", "x", "--json-schema", '{"a"'], "--json-schema: the text cannot be read as JSON"),
        (["--prompt", "x", "--raw", "--json-object"], "--raw continues plain text, but formats and tools"),
        (["--prompt", "x", "--json-object", "--regex", "a"], "--json-object and --regex are given"),
        (["--prompt", "x", "--json-schema", "/nowhere"], "--json-schema: /nowhere cannot be read as JSON"),
        (["--prompt", "x", "--tools", "/nowhere"], "--tools: /nowhere cannot be read as JSON"),
        (["--prompt", "x", "--tool-choice", "required"], "--tool-choice is 'required', but there are no tools"),
        (["--prompt", "x", "--memory", "lots"], "--memory: size is 'lots'"),
        (["--prompt", "x", "--speculate", "draft"], "--speculate draft is given without --draft-model"),
        (["--prompt", "x", "--speculate", "ngram", "--draft-model", "y"], "--speculate ngram is given with"),
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


@pytest.mark.parametrize(
    ("text", "message"),
    [("[]", "expected a list of tools"), ('{"a": 1}', "expected a list of tools"), ("[1]", "expected a list of tools")],
)
def test_a_file_that_holds_no_tools(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tools.json").write_text(text, encoding="utf-8")
    assert run(["generate", "no such model", "--prompt", "x", "--tools", str(tmp_path / "tools.json")]) == 2
    assert message in capsys.readouterr().err


def test_an_answer_of_a_real_model_follows_a_schema(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}
    (tmp_path / "schema.json").write_text(json.dumps(schema), encoding="utf-8")
    flags = ["--no-thinking", "--seed", "4", "--max-tokens", "400", "--memory", "1GB"]
    schema_flag = ["--json-schema", str(tmp_path / "schema.json")]
    assert run(["generate", "nano", "--prompt", "What is 1 + 1?", *schema_flag, *flags]) == 0
    assert json.loads(capsys.readouterr().out)["n"] in (1, 2)


def test_logprobs_of_a_real_model(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--temperature", "0", "--max-tokens", "3", "--memory", "1GB", "--json", "--top-logprobs", "2"]
    assert run(["generate", "nano", "--raw", "--prompt", "The cat", *flags]) == 0
    item = json.loads(capsys.readouterr().out)
    assert "".join(token["token"] for token in item["logprobs"]) == item["content"]
    for token in item["logprobs"]:
        (best, second) = token["top"]
        assert best == {"id": token["id"], "token": token["token"], "logprob": token["logprob"]}
        assert 0 > best["logprob"] >= second["logprob"]


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

"""The command as a whole: help without torch, exit codes, errors as text, closed pipes."""

from __future__ import annotations

import importlib
import inspect
import os
import resource
import subprocess
import sys

import pytest

from openk3 import __version__
from openk3.cli import main as command
from openk3.cli.errors import UsageError
from openk3.cli.info import info
from openk3.cli.init import init
from openk3.errors import CheckpointError
from openk3.model.presets import PRESETS

OPENK3 = [sys.executable, "-m", "openk3.cli.main"]
EVERY_HELP = [[], *([verb] for verb in command.VERBS), ["train", "pretrain"]]

_HELP_WITHOUT_TORCH = """
import sys
from openk3.cli.main import run
code = run([*sys.argv[1:], "--help"])
sys.exit(code or 10 * ("torch" in sys.modules))
"""


@pytest.mark.parametrize("chain", EVERY_HELP, ids=" ".join)
def test_help_of_every_verb_needs_no_torch(chain: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _HELP_WITHOUT_TORCH, *chain], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "Usage: openk3" in done.stdout


def test_the_list_of_verbs_imports_none_of_them() -> None:
    script = "import sys; from openk3.cli.main import run; run(['--help']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert all(f"\n{verb}" in done.stdout.replace("│ ", "\n") for verb in command.VERBS)
    assert not any(f"openk3.cli.{verb}" in done.stdout.split() for verb in command.VERBS)


@pytest.mark.parametrize("verb", [verb for verb in command.VERBS if verb != "train"])  # an app, with the same text
def test_the_list_of_verbs_says_what_their_docstrings_say(verb: str) -> None:
    function = getattr(importlib.import_module(f"openk3.cli.{verb}"), verb)
    assert command.VERBS[verb].split("\n")[0] == str(inspect.getdoc(function)).split("\n")[0]


def test_the_list_of_verbs_says_what_train_says() -> None:
    assert importlib.import_module("openk3.cli.train").train.help == command.VERBS["train"]


def test_help_names_every_preset() -> None:
    *others, published = PRESETS
    assert f"Its sizes: {', '.join(others)}, or {published}," in str(inspect.getdoc(init))
    assert f"a preset such as {published}," in str(inspect.getdoc(info))


def test_help_is_fast() -> None:
    # Processor time of the child, so that a busy machine does not matter.
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([*OPENK3, "--help"], stdout=subprocess.DEVNULL, timeout=60, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.3


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.run(["--version"]) == 0
    assert capsys.readouterr().out == f"{__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["chta"], 'Unknown command "chta". Did you mean "chat"?'),
        (["generate", "nano", "--temprature", "1"], "Unknown option: --temprature. Did you mean --temperature?"),
        (["generate"], "requires an argument"),
        (["generate", "nano", "--top-k", "many"], "many"),
        (["generate", "nano", "--dtype", "int8"], "int8"),
    ],
    ids=["verb", "flag", "missing", "type", "choice"],
)
def test_bad_usage(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.run(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert "\n\nhint: `openk3" in err


class _Raises:
    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __call__(self, *_: object, **__: object) -> None:
        raise self.error


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (CheckpointError("x.safetensors: cut short", hint="fetch it again"),
         1, "error: x.safetensors: cut short\n\nhint: fetch it again\n"),
        (CheckpointError("no more to say"), 1, "error: no more to say\n"),
        (UsageError("a and b", hint="a or b"), 2, "error: a and b\n\nhint: a or b\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
    ids=["error", "no-hint", "usage", "interrupt"],
)  # fmt: skip
def test_errors_become_text_and_a_code(
    error: BaseException, code: int, text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "make_app", lambda: _Raises(error))
    assert command.run([]) == code
    assert capsys.readouterr() == ("", text)


def test_a_fault_of_ours_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "make_app", lambda: _Raises(RuntimeError("a bug")))
    with pytest.raises(RuntimeError, match="a bug"):
        command.run([])


def test_a_verb_chooses_its_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "make_app", lambda: lambda *_, **__: 1)
    assert command.run([]) == 1


_WRITES_TO_A_CLOSED_PIPE = """
import os, sys
from openk3.cli import main
main.make_app = lambda: lambda *_, **__: print("x" * 100_000)
main.main()
"""


def test_a_reader_that_goes_away_is_no_error() -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        program = [sys.executable, "-c", _WRITES_TO_A_CLOSED_PIPE]
        done = subprocess.run(program, stdout=write, stderr=subprocess.PIPE, timeout=60, check=False)
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize("arguments", [["--help"], ["generate", "--help"], ["--version"]], ids=" ".join)
def test_help_whose_reader_goes_away_is_no_error(arguments: list[str]) -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run([*OPENK3, *arguments], stdout=write, stderr=subprocess.PIPE, timeout=60, check=False)
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


def test_flags_from_the_environment(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("OPENK3_GENERATE_TOP_K", "-3")
    assert command.run(["generate", "nano", "--prompt", "x"]) == 2
    assert capsys.readouterr().err.startswith("error: top_k is -3")
    # A flag wins over the environment.
    assert command.run(["generate", "nano", "--prompt", "x", "--top-k", "-5"]) == 2
    assert capsys.readouterr().err.startswith("error: top_k is -5")

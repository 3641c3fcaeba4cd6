"""The examples of the guides do what the pages say: each page is run from top to bottom, in an empty folder.

Unusual: a block marked text is what the block before it prints, and `...` in it stands for anything.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
PYTHON_PAGES = ["README.md", "docs/guides/python.md"]
CONSOLE_PAGES = ["docs/guides/chat.md"]
_BLOCK = re.compile(r"^```(python|console)\n(.*?)^```$(?:\n\n```text\n(.*?)^```$)?", re.DOTALL | re.MULTILINE)


class Example(NamedTuple):
    line: int
    language: str
    code: str
    expected: str


def examples(page: str) -> Iterator[Example]:
    text = (ROOT / page).read_text(encoding="utf-8")
    for match in _BLOCK.finditer(text):
        language, code, expected = match.groups()
        yield Example(text.count("\n", 0, match.start(2)) + 1, language, code, expected or "")


def run_python(example: Example, page: str, names: dict[str, Any]) -> str:
    padded = "\n" * (example.line - 1) + example.code  # so that a traceback names the line of the page
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(padded, page, "exec"), names)
    return printed.getvalue()


def check(example: Example, page: str, printed: str) -> None:
    if not doctest.OutputChecker().check_output(example.expected, printed, doctest.ELLIPSIS):
        pytest.fail(f"{page}:{example.line} prints\n{printed}\nbut the page says\n{example.expected}", pytrace=False)


@pytest.mark.parametrize("page", PYTHON_PAGES)
def test_python_examples_print_what_the_page_says(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "example"}
    found = [example for example in examples(page) if example.language == "python"]
    assert found
    for example in found:
        check(example, page, run_python(example, page, names))


@pytest.mark.parametrize("page", CONSOLE_PAGES)
def test_commands_print_what_the_page_says(page: str, tmp_path: Path) -> None:
    found = [example for example in examples(page) if example.language == "console"]
    assert found
    command = f'openk3() {{ {shlex.quote(sys.executable)} -m openk3.cli.main "$@"; }}\n'
    for example in found:
        lines = re.sub(r"^\$ ", "", example.code, flags=re.MULTILINE)
        done = subprocess.run(
            ["sh", "-ec", command + lines], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
        check(example, page, done.stdout)

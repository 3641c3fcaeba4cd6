"""The examples of the guides for clients run against a real server, each page from top to bottom as one script.

Unusual: no example depends on what the model knows; what is compared was forced by a grammar or by the protocol.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.guides.pages import blocks, check, script

_LIMIT_S = 200


def run(command: Sequence[str], folder: Path, extra: Mapping[str, str] | None = None) -> str:
    """Run a command in ``folder`` and return its stdout; its stderr is the reason if it fails."""
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **(extra or {})},
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
    )
    if done.returncode != 0:
        pytest.fail(f"{' '.join(command)} failed\n{done.stdout}\n{done.stderr}", pytrace=False)
    return done.stdout


def run_python(page: str, section: str | None, url: str, folder: Path) -> None:
    found = blocks(page, "python", section)
    file = folder / f"page_{Path(page).stem}.py"  # not openai.py, which would be found instead of the package
    file.write_text(script(found, url), encoding="utf-8")
    check(page, found, run([sys.executable, str(file)], folder, {"PYTHONIOENCODING": "utf-8"}))


@pytest.mark.parametrize("page", ["docs/guides/openai.md", "docs/guides/anthropic.md"])
def test_python(page: str, url: str, tmp_path: Path) -> None:
    run_python(page, None, url, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("section", "package"), [("LangChain", "langchain_openai"), ("LiteLLM", "litellm")])
def test_python_of_heavy_packages(section: str, package: str, url: str, tmp_path: Path) -> None:
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    run_python("docs/guides/clients.md", section, url, tmp_path)


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
@pytest.mark.parametrize("page", ["docs/guides/serve.md", "docs/guides/clients.md"])
def test_commands(page: str, url: str, tmp_path: Path) -> None:
    found = blocks(page, "console")
    check(page, found, run(["sh", "-ec", script(found, url)], tmp_path, {"no_proxy": "127.0.0.1"}))


@pytest.mark.parametrize("page", ["docs/guides/openai.md", "docs/guides/anthropic.md"])
def test_typescript(page: str, url: str, node_folder: Path) -> None:
    found = blocks(page, "ts")
    name = f"page-{Path(page).stem}"
    (node_folder / f"{name}.ts").write_text(script(found, url), encoding="utf-8")
    run(["node", "node_modules/typescript/bin/tsc", "--project", "."], node_folder)
    check(page, found, run(["node", f"{name}.js"], node_folder, {"NO_COLOR": "1"}))


def test_a_page_that_says_something_else_is_noticed() -> None:
    found = blocks("docs/guides/serve.md", "console")
    right = "\0\n".join([*((block.expected or "").replace("...", "x") for block in found), ""])
    check("page", found, right)
    with pytest.raises(pytest.fail.Exception, match="but the page says"):
        check("page", found, right.replace("ok", "bad", 1))
    with pytest.raises(AssertionError):
        check("page", found, right.replace("\0\n", "", 1))

"""What the guide for operators says is so: flags, metrics, the fields of the log, the lines about the licence."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import fields

import httpx
import pytest

from openk3.cli.serve import ServedEngineFlags, ServerFlags
from openk3.model.licence import licence_terms
from openk3.model.presets import preset
from openk3.protocol.sampling import Usage
from openk3.server.access_log import AccessLog, Record
from openk3.server.app import all_counters, all_endpoints
from tests.guides.pages import ROOT

GUIDE = (ROOT / "docs/guides/serve.md").read_text(encoding="utf-8")


def test_every_flag_is_explained() -> None:
    known = {
        f"--{field.name.replace('_', '-')}" for flags in (ServerFlags, ServedEngineFlags) for field in fields(flags)
    }
    table = GUIDE.split("## Flags")[1].split("\n## ")[0]
    assert known | {"--dtype"} == set(re.findall(r"`(--[a-z-]+)`", table)) - {"--port 8080"}


def test_every_path_is_listed() -> None:
    served = {path for endpoint in [*all_endpoints(), *all_counters()] for path in endpoint.paths}
    assert served == set(re.findall(r"`POST ([^`]+)`", GUIDE))


def test_the_metrics_that_it_names_exist(url: str) -> None:
    names = re.findall(r"`((?:vllm|openk3):[a-z_]+)`", GUIDE)
    assert len(names) > 10
    known = httpx.get(f"{url}/metrics", timeout=30).text
    missing = [name for name in names if f"\n{name}{{" not in known and f"# TYPE {name} " not in known]
    assert missing == []


def test_the_paths_without_a_key(url: str) -> None:
    open_paths = {
        path for path in ("/", "/health", "/metrics", "/v1/models", "/v1/usage") if _status(url + path) == 200
    }
    assert open_paths == {"/", "/health", "/metrics"}


def _status(address: str) -> int:
    return httpx.get(address, timeout=30).status_code


def test_the_line_of_the_log_has_the_fields_that_it_shows(capsys: pytest.CaptureFixture[str]) -> None:
    record = Record("req_1", "POST", "/v1/chat/completions", key="alice", status=200, usage=Usage(92, 35))
    AccessLog().write(record)
    (example,) = re.findall(r"```json\n(.*)\n```", GUIDE)
    assert list(json.loads(example)) == list(json.loads(capsys.readouterr().err))


def test_the_lines_about_the_licence_are_those_that_are_shown() -> None:
    assert "\n".join(licence_terms(preset("k3"))) in GUIDE


@pytest.mark.parametrize(("flags", "told"), [([], "port is 99999"), (["--port", "88888"], "port is 88888")])
def test_a_flag_can_be_a_variable_and_a_flag_wins(flags: list[str], told: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "openk3.cli.main", "serve", *flags],
        env={**os.environ, "OPENK3_SERVE_PORT": "99999"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 2
    assert told in done.stderr

"""``openk3 serve``: flags to settings, errors before a model is loaded, and one line when it is ready."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from openk3.cli.errors import UsageError
from openk3.cli.main import run
from openk3.cli.serve import ServedEngineFlags, ServerFlags
from openk3.errors import ConfigError
from openk3.model.presets import preset
from openk3.model.published import config_to_dict
from openk3.server.serve import bind, is_local, url_of

ROOT = Path(__file__).parents[2]


def test_flags_become_settings(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("alice sk-a\n")
    flags = ServerFlags(
        name=("kimi-k3", "nano"),
        api_key=("sk-1",),
        api_key_file=file,
        max_body="1MB",
        cors_origin=("https://a.example",),
    )
    settings = flags.settings("models/nano/")
    assert settings.names == ("nano", "kimi-k3")
    assert settings.api_keys == (("key1", "sk-1"), ("alice", "sk-a"))
    assert (settings.max_body_bytes, settings.cors_origins) == (1_000_000, ("https://a.example",))
    assert (settings.host, settings.port, settings.timeout_s, settings.shutdown_s) == ("127.0.0.1", 8000, 900.0, 30.0)


def test_the_engine_has_flags_of_its_own() -> None:
    assert ServedEngineFlags(max_running=2, max_waiting=3, memory="1GB").settings() == {
        "memory_bytes": 10**9,
        "speculate": "off",
        "cache_folder": None,
        "deterministic": False,
        "max_running": 2,
        "max_waiting": 3,
    }
    assert "max_running" not in ServedEngineFlags().settings()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--port", "70000"], "port is 70000"),
        (["--port", "http"], "http"),
        (["--max-body", "much"], "size is 'much'"),
        (["--max-concurrent", "-1"], "max_concurrent is -1"),
        (["--timeout", "0"], "timeout_s is 0"),
        (["--api-key", "two words"], "--api-key number 1"),
        (["--cors-origin", "example.com"], "'example.com', expected"),
        (["--max-running", "0"], "max_running is 0"),
        (["--memory", "some"], "--memory: size is 'some'"),
        (["--nmae", "x"], "--nmae"),
    ],
)
def test_wrong_flags_are_bad_usage(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serve", "nano", *arguments]) == 2
    captured = capsys.readouterr()
    assert message in captured.err and captured.out == ""


def test_a_port_in_use_is_said_before_anything_is_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert run(["serve", "/nowhere", "--port", str(port)]) == 1
    captured = capsys.readouterr()
    assert f"127.0.0.1:{port} cannot be listened on: Address already in use" in captured.err
    assert "choose another --port" in captured.err


def test_a_host_without_an_address(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serve", "--host", "999.1.1.1", "--port", "0"]) == 1
    assert "host '999.1.1.1' has no address" in capsys.readouterr().err


def test_a_missing_key_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serve", "--api-key-file", "/nowhere/keys", "--port", "0"]) == 1
    assert "/nowhere/keys: No such file" in capsys.readouterr().err


def test_addresses() -> None:
    with bind("127.0.0.1", 0) as sock:
        assert url_of(sock) == f"http://127.0.0.1:{sock.getsockname()[1]}" and is_local(sock)
    with bind("0.0.0.0", 0) as sock:
        assert not is_local(sock)
    if socket.has_ipv6:
        try:
            sock = bind("::1", 0)
        except ConfigError:
            return  # the machine has no such address
        with sock:
            assert url_of(sock).startswith("http://[::1]:") and is_local(sock)


def test_a_bad_origin_is_not_silently_useless() -> None:
    with pytest.raises(UsageError, match="expected \\* or a scheme and a host"):
        ServerFlags(cors_origin=("https://a.example/page",)).settings("nano")
    assert ServerFlags(cors_origin=("*", "http://localhost:3000")).settings("nano").cors_origins[0] == "*"


def test_the_published_model_s_licence_is_shown_before_its_weights_are_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config_to_dict(preset("k3"))))
    assert run(["serve", str(tmp_path), "--port", "0"]) == 1  # there are no weights
    captured = capsys.readouterr()
    assert captured.err.startswith("Kimi K3 licence: ") and captured.out == ""


def test_one_line_says_where_it_answers() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OPENK3_SERVE_NAME": "kimi-k3 other"}
    command = [sys.executable, "-m", "openk3.cli.main", "serve", "--port", "0", "--memory", "1GiB", "--host", "0.0.0.0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert url.startswith("http://0.0.0.0:")
        models = httpx.get(f"{url.replace('0.0.0.0', '127.0.0.1')}/v1/models").json()
        assert [model["id"] for model in models["data"]] == ["nano", "kimi-k3", "other"]
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, out) == (0, "")
    assert "without --api-key everybody may ask" in err
    assert "parameters, bfloat16" in err
    assert "Traceback" not in err and "licence" not in err

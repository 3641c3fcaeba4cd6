"""API keys: how they are sent, compared, named and read from a file."""

from __future__ import annotations

import hmac
from pathlib import Path

import pytest

from openk3.errors import ConfigError
from openk3.server.auth import EVERYBODY, Keys, name_keys
from openk3.server.faults import Fault
from openk3.server.settings import ServerSettings

KEYS = Keys([("alice", "sk-alice"), ("bob", "sk-bob")])


@pytest.mark.parametrize(
    ("headers", "name"),
    [
        ({"authorization": "Bearer sk-alice"}, "alice"),
        ({"authorization": "bearer  sk-bob "}, "bob"),
        ({"x-api-key": "sk-bob"}, "bob"),
        ({"authorization": "Bearer placeholder", "x-api-key": "sk-bob"}, "bob"),
        ({"authorization": "Basic c2s=", "x-api-key": "sk-alice"}, "alice"),
    ],
)
def test_a_key_has_its_name(headers: dict[str, str], name: str) -> None:
    assert KEYS.identify(headers) == name


@pytest.mark.parametrize(
    ("headers", "kind"),
    [
        ({}, "invalid_authentication_error"),
        ({"authorization": "Bearer"}, "invalid_authentication_error"),
        ({"authorization": "Bearer "}, "invalid_authentication_error"),
        ({"authorization": "sk-alice"}, "invalid_authentication_error"),
        ({"authorization": "Basic sk-alice"}, "invalid_authentication_error"),
        ({"authorization": "Bearer sk-alic"}, "incorrect_api_key_error"),
        ({"authorization": "Bearer sk-alice sk-bob"}, "incorrect_api_key_error"),
        ({"x-api-key": "\u00ff"}, "incorrect_api_key_error"),
        ({"x-api-key": "alice"}, "incorrect_api_key_error"),
    ],
)
def test_without_a_key_nothing_is_answered(headers: dict[str, str], kind: str) -> None:
    with pytest.raises(Fault) as caught:
        KEYS.identify(headers)
    assert (caught.value.status, caught.value.kind) == (401, kind)
    assert caught.value.headers == {"WWW-Authenticate": "Bearer"}
    assert not any("sk-" in text for text in caught.value.args)


def test_without_keys_everybody_may_ask() -> None:
    assert Keys([]).identify({"authorization": "Bearer anything"}) == EVERYBODY


def test_every_key_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    real, compared = hmac.compare_digest, []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append(other)
        return real(one, other)

    monkeypatch.setattr("openk3.server.auth.hmac.compare_digest", compare)
    assert KEYS.identify({"x-api-key": "sk-alice"}) == "alice"
    assert len(set(compared)) == 2


def test_keys_are_named_by_their_file(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# who may ask\nalice sk-a\n\n  sk-b\n")
    assert name_keys(["sk-1"], file) == (("key1", "sk-1"), ("alice", "sk-a"), ("key3", "sk-b"))
    assert name_keys([], None) == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no keys, expected lines"),
        ("a b c", "line 1: 3 words, expected `name key` or `key`"),
        ("a sk-1\na sk-2", "two API keys are called a"),
        ("a sk-1\nb sk-1", "the API key called b has another name too"),
        ("a schlüssel", "line 1: the key is empty or has blanks or other than ASCII"),
    ],
)
def test_a_file_of_something_else_is_refused(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "keys"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        name_keys([], file)
    assert message in caught.value.message
    assert "sk-" not in caught.value.message


@pytest.mark.parametrize("key", ["", "two words", "line\n"])
def test_a_key_that_no_header_can_hold_is_refused(key: str) -> None:
    with pytest.raises(ConfigError, match="--api-key number 1"):
        name_keys([key], None)


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="not a text"):
        name_keys([], file)


def test_settings_do_not_show_keys() -> None:
    assert "sk-alice" not in repr(ServerSettings(api_keys=(("alice", "sk-alice"),)))

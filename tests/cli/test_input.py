"""What comes in from outside: text that may not be UTF-8, flags over settings, Ctrl-C."""

from __future__ import annotations

import io
import os
import signal
import sys

import pytest

from openk3.cli.errors import UsageError
from openk3.cli.flags import SamplingFlags, parse_effort
from openk3.cli.interrupt import first_interrupt
from openk3.cli.text_input import check_text, read_all, read_lines
from openk3.protocol.sampling import SamplingParams


@pytest.fixture
def stdin(monkeypatch: pytest.MonkeyPatch) -> io.BytesIO:
    data = io.BytesIO()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(data, encoding="ascii"))
    return data


def fill(stdin: io.BytesIO, data: bytes) -> None:
    stdin.write(data)
    stdin.seek(0)


@pytest.mark.parametrize(
    ("data", "text"), [(b"one\n", "one"), (b"one\r\n", "one"), (b"one\n\n", "one\n"), ("é\n".encode(), "é"), (b"", "")]
)
def test_stdin_as_a_whole_loses_one_line_end(stdin: io.BytesIO, data: bytes, text: str) -> None:
    fill(stdin, data)
    assert read_all() == text


def test_stdin_by_lines(stdin: io.BytesIO) -> None:
    fill(stdin, "one\r\n\ntwö".encode())
    assert list(read_lines()) == ["one", "", "twö"]


def test_stdin_that_is_not_utf8_is_said_plainly(stdin: io.BytesIO) -> None:
    fill(stdin, b"good\nb\xffd\n")
    with pytest.raises(UsageError, match="stdin is not UTF-8 text: byte 6 is 0xff"):
        read_all()
    stdin.seek(0)
    with pytest.raises(UsageError, match="line 2 of stdin is not UTF-8 text: byte 1 is 0xff"):
        list(read_lines())


def test_an_argument_that_is_not_utf8_is_said_plainly() -> None:
    check_text(None, "--system")
    check_text("é", "--system")
    with pytest.raises(UsageError, match="--prompt is not UTF-8 text, at character 1"):
        check_text(os.fsdecode(b"a\xff"), "--prompt")


def test_flags_go_over_a_models_own_settings() -> None:
    own = SamplingParams(temperature=0.7, top_p=0.9, top_k=5)
    assert SamplingFlags().over(own) == own
    given = SamplingFlags(temperature=0.0, top_k=0, stop=("x",)).over(own)
    assert given == SamplingParams(temperature=0.0, top_p=0.9, top_k=0, stop=("x",))


def test_a_flag_without_meaning_is_bad_usage() -> None:
    with pytest.raises(UsageError, match="top_p is 2"):
        SamplingFlags(top_p=2.0).over(SamplingParams())


def test_efforts() -> None:
    assert [parse_effort(level) for level in (None, "low", "high", "max")] == ["max", "low", "high", "max"]
    with pytest.raises(UsageError, match="'medium', expected low, high or max: the chat template has such a level"):
        parse_effort("medium")
    with pytest.raises(UsageError, match="'lots', expected low, high or max\nhint"):
        parse_effort("lots")


def test_the_first_interrupt_asks_and_the_second_insists() -> None:
    asked: list[str] = []
    with pytest.raises(KeyboardInterrupt), first_interrupt(lambda: asked.append("stop")):
        signal.raise_signal(signal.SIGINT)
        assert asked == ["stop"]
        signal.raise_signal(signal.SIGINT)
    assert asked == ["stop"]


def test_interrupts_are_as_before_afterwards() -> None:
    before = signal.getsignal(signal.SIGINT)
    with first_interrupt(lambda: None):
        pass
    assert signal.getsignal(signal.SIGINT) is before

"""The ``openk3`` command: its verbs, and what errors, Ctrl-C and closed pipes turn into.

Unusual: a verb's file is imported only when that verb is named, and torch only when it starts to compute.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence

from cyclopts import App, CycloptsError, Parameter
from cyclopts.config import Env

from openk3 import __version__
from openk3.cli.errors import UsageError, report
from openk3.errors import OpenK3Error

# What each verb does, here and not in its file, so that the list of verbs imports none of them.
VERBS = {
    "chat": "Talk to a model in this terminal.\n\n"
    "Without a terminal, each line of stdin is a turn. Ctrl-C stops an answer, Ctrl-D leaves, /help lists commands.",
    "generate": "Write one answer, for scripts.\n\nThe answer goes to stdout, the thinking before it to stderr.",
    "serve": "Answer over HTTP, as the hosted service does.\n\n"
    "The URL goes to stdout once it answers. SIGTERM or Ctrl-C lets running requests finish, a second one does not.",
    "info": "Show what a model is: parameters, bytes, active parameters, state and cache sizes.",
    "init": "Write a model with random weights in the published layout.",
    "verify": "Check that a checkpoint is whole, well-formed and finite, and computes what it should.",
    "quantize": "Change the format of a model's expert weights.",
    "train": "Train a model.",
}

_INTERRUPTED = 130  # 128 + SIGINT, what a shell reports for a program ended by Ctrl-C
_PIPE_CLOSED = 141  # 128 + SIGPIPE, likewise for one whose reader went away


def make_app() -> App:
    """Build the command with all its verbs, none of them imported yet."""
    app = App(
        name="openk3",
        help="Kimi K3: train it, run it, measure it. MODEL: a folder in the published layout or a bundled name (nano).",
        version=__version__,
        config=Env("OPENK3_"),
        default_parameter=Parameter(negative_iterable=(), show_env_var=False),
        help_format="plaintext",
        suppress_keyboard_interrupt=False,
    )
    for verb, text in VERBS.items():
        app.command(f"openk3.cli.{verb}:{verb}", name=verb, help=text)
    return app


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code: 0 done, 1 it failed, 2 bad usage, 130 Ctrl-C, 141 closed pipe."""
    try:
        code = make_app()(arguments, exit_on_error=False, print_error=False, result_action="return_value")
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except CycloptsError as error:
        chain = " ".join(["openk3", *(error.command_chain or ())])
        return _fail(str(error), f"`{chain} --help` shows what it takes", code=2)
    except UsageError as error:
        return _fail(error.message, error.hint, code=2)
    except OpenK3Error as error:
        return _fail(error.message, error.hint, code=1)
    except SystemExit as leaving:
        # What prints the help leaves like this, its stdout already turned away, when the reader went away.
        if isinstance(leaving.__context__, BrokenPipeError):
            return _PIPE_CLOSED
        raise
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        # Python flushes stdout once more on its way out; let that go nowhere instead of failing again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _PIPE_CLOSED
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _fail(f"{where}{error.strerror or error}", None, code=1)
    except MemoryError:
        return _fail("there is not enough memory", "`openk3 info MODEL` says what a model takes", code=1)


def main() -> None:
    """Run the command line of this process."""
    _open_missing_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal that cannot show a character gets its code instead of ending the program.
            stream.reconfigure(errors="backslashreplace")
    sys.exit(run(sys.argv[1:]))


def _open_missing_streams() -> None:
    """Stand in for standard streams that the caller closed: nothing comes from them, nothing is shown on them."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 (as long as the process)


def _fail(message: str, hint: str | None, *, code: int) -> int:
    report(message, hint)
    return code


if __name__ == "__main__":
    main()

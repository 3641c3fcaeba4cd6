"""``openk3 train``: training runs. Progress goes to stderr, where the results are to stdout."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from openk3.cli.flags import Switch

train = App(name="train", help="Train a model.", help_format="plaintext")


@train.command
def pretrain(
    *,
    config: Path,
    resume: Switch = False,
    overrides: Annotated[tuple[str, ...], Parameter(name="--set", negative_iterable=())] = (),
) -> None:
    """Train on the next token of a mixture of texts and dialogues.

    SIGTERM saves and stops. The result is a model folder, <run.output>/model, beside metrics and loss curve.

    Parameters
    ----------
    config
        The run's settings, a TOML file; paths in it are relative to it.
    resume
        Go on from the last checkpoint in run.output.
    overrides
        A setting that replaces the file's, as section.key=value; may be repeated.
    """
    from openk3.train.config import load_train_config

    settings = load_train_config(config, overrides)

    from openk3.train.pretrain import pretrain as run

    outcome = run(settings, resume=resume, report=_report)
    if outcome == "stopped":
        _report("stopped and saved; go on with --resume")
        print(settings.run.output)
        return
    print(settings.run.output / "model")


def _report(line: str) -> None:
    print(line, file=sys.stderr, flush=True)

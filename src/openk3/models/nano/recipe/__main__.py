"""The stages of the recipe as commands: prepare, train, evaluate, export."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

from cyclopts import App

from openk3.errors import OpenK3Error

BUILD = Path("build/nano")
app = App(name="python -m openk3.models.nano.recipe", help="Make the bundled model.", help_format="plaintext")


@app.command
def prepare(*, build: Path = BUILD) -> None:
    """Fetch the texts, write the dialogues, learn the vocabulary."""
    from openk3.models.nano.recipe.prepare import prepare as run

    _say(json.dumps(run(build), indent=2))


@app.command
def train(*, build: Path = BUILD, resume: bool = False) -> None:
    """Train for the minutes that nano.toml says."""
    from openk3.models.nano.recipe.prepare import RUN_FILE
    from openk3.train.config import load_train_config
    from openk3.train.pretrain import pretrain

    _say(pretrain(load_train_config(build / RUN_FILE), resume=resume, report=_say))


@app.command
def evaluate(*, build: Path = BUILD, per_task: int = 4) -> None:
    """Ask held-out questions; answers go to answers.jsonl, their summary to results.json."""
    from openk3.models.nano.recipe.evaluate import evaluate as run
    from openk3.models.nano.recipe.evaluate import summary
    from openk3.models.nano.recipe.sources import Sources

    results = run(build / "run" / "model", Sources(build / "sources").wordnet, per_task)
    lines = "".join(json.dumps(asdict(result)) + "\n" for result in results)
    (build / "answers.jsonl").write_text(lines, encoding="utf-8")
    text = json.dumps(summary(results), indent=2)
    (build / "results.json").write_text(text + "\n", encoding="utf-8")
    _say(text)


@app.command
def export(*, build: Path = BUILD) -> None:
    """Put the trained model where the package bundles it."""
    from openk3.models.nano.recipe.export import export as run

    target = Path(__file__).resolve().parent.parent
    _say(f"{target}: {run(build, target):,} bytes")


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> int:
    """Run one stage; return the exit code."""
    try:
        app(result_action="return_value")
    except OpenK3Error as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""From a finished run to the bundled folder: weights, vocabulary, sampling settings, and the card with its figures."""

from __future__ import annotations

import json
import shutil
from importlib import resources
from pathlib import Path
from typing import Any

from openk3.checkpoint.index import INDEX_FILE
from openk3.checkpoint.writer import remove_weights
from openk3.errors import CapacityError, TrainingError
from openk3.model.accounting import account
from openk3.models.nano.recipe.shape import NANO, NUM_BASE_TOKENS
from openk3.tokenizer.special import SpecialTokens

MAX_BYTES = 12_000_000
# Facts come out wrong when sampled freely from a model this small; stories should still differ.
_SAMPLING = {"do_sample": True, "temperature": 0.3, "top_p": 0.9}


def export(build: Path, target: Path) -> int:
    """Copy the run's model from ``build`` to ``target`` with everything it needs; return the bytes there.

    Nothing at ``target`` is touched before all of it is known to be there and to fit.

    Raises:
        TrainingError: a stage before this one has not been run.
        CapacityError: the result is larger than 12 MB.
    """
    sampling = {"eos_token_id": SpecialTokens.block(NUM_BASE_TOKENS).end_of_msg, **_SAMPLING}
    texts = {"generation_config.json": json.dumps(sampling, indent=2) + "\n", "CARD.md": card(build)}
    files = _model_files(build / "run" / "model")
    size = sum(file.stat().st_size for file in files) + sum(len(text.encode()) for text in texts.values())
    if size > MAX_BYTES:
        raise CapacityError(f"nano takes {size:,} bytes, expected at most {MAX_BYTES:,}", hint="choose a smaller shape")
    target.mkdir(parents=True, exist_ok=True)
    remove_weights(target)
    for name, text in texts.items():
        (target / name).write_text(text, encoding="utf-8")
    for file in files:
        shutil.copyfile(file, target / file.name)
    return size


def _model_files(folder: Path) -> list[Path]:
    """List a finished run's model, its index last, so that a copy that was cut short does not look whole."""
    files = sorted(folder.iterdir(), key=lambda file: (file.name == INDEX_FILE, file.name)) if folder.is_dir() else []
    if not files or files[-1].name != INDEX_FILE:
        raise TrainingError(f"{folder}: no finished model there", hint="run the stage `train` to its end first")
    return files


def card(build: Path) -> str:
    """Return the model card, its figures taken from the files that the stages wrote."""
    made, results = _read(build / "made.json"), _read(build / "results.json")
    metrics = [json.loads(line) for line in (build / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    last = [row for row in metrics if "loss" in row][-1]
    held_out = [row["held_out"] for row in metrics if "held_out" in row][-1]
    template = (resources.files(__package__) / "card.md").read_text(encoding="utf-8")
    return template.format(
        parameters=f"{account(NANO, vision=False).total.parameters:,}",
        active=f"{account(NANO, vision=False).active_parameters:,}",
        made=made,
        minutes=f"{last['minutes']:.0f}",
        tokens=f"{last['tokens']:,}",
        steps=f"{last['step']:,}",
        held_out="\n".join(f"| {name} | {loss:.3f} |" for name, loss in held_out.items()),
        results=_table(results),
        seed=results["seed"],
        thinking=", ".join(f"{effort} {mean}" for effort, mean in results["thinking_tokens"].items()),
    )


def _table(results: dict[str, Any]) -> str:
    rows = [*results["right"].items(), ("**all**", results["overall"])]
    return "\n".join(
        f"| {task} | {' | '.join(f'{right}/{asked}' for right, asked in shares.values())} |" for task, shares in rows
    )


def _read(file: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise TrainingError(f"{file}: no such file", hint="run the stages before this one first") from None
    return content

"""What a run writes down: a line of JSON per report, and at the end the loss curve as JSON and as a picture.

Unusual: on resuming, lines after the checkpoint's step are dropped, so the file reads as if the run had never stopped.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from openk3.errors import TrainingError


class MetricsLog:
    """The file ``metrics.jsonl`` of one run."""

    def __init__(self, folder: Path, last_step: int) -> None:
        self._file = folder / "metrics.jsonl"
        kept = [row for row in read_metrics(folder) if row["step"] <= last_step]
        part = folder / "metrics.jsonl.part"
        part.write_text("".join(json.dumps(row) + "\n" for row in kept), encoding="utf-8")
        os.replace(part, self._file)

    def write(self, row: dict[str, Any]) -> None:
        """Append one report."""
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """Return all reports of a run so far, without a last line that was cut short with the run.

    Raises:
        TrainingError: another line is not a report.
    """
    file = folder / "metrics.jsonl"
    lines = file.read_bytes().splitlines(keepends=True) if file.is_file() else []
    return [_report(line, f"{file}:{number}") for number, line in enumerate(lines, 1) if line.endswith(b"\n")]


def _report(line: bytes, where: str) -> dict[str, Any]:
    try:
        row: dict[str, Any] = json.loads(line)
        int(row["step"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise TrainingError(f"{where}: not a report of a run: {error}", hint="delete the line") from None
    return row


def write_curves(folder: Path) -> None:
    """Write ``loss_curve.json`` and ``loss_curve.png`` from the reports."""
    rows = read_metrics(folder)
    training = [{key: row[key] for key in ("step", "tokens", "loss")} for row in rows if "loss" in row]
    held_out = [{key: row[key] for key in ("step", "tokens", "held_out")} for row in rows if "held_out" in row]
    part = folder / "loss_curve.json.part"
    part.write_text(json.dumps({"training": training, "held_out": held_out}, indent=1) + "\n", encoding="utf-8")
    os.replace(part, folder / "loss_curve.json")
    _draw(folder / "loss_curve.png", training, held_out)


def _draw(file: Path, training: list[dict[str, Any]], held_out: list[dict[str, Any]]) -> None:
    # not at the top of the file: it takes most of a second, and only the end of a run draws
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot(xlabel="trained tokens", ylabel="loss, nats per token")
    axes.plot([row["tokens"] for row in training], [row["loss"] for row in training], color="0.6", label="training")
    for name in held_out[0]["held_out"] if held_out else ():
        losses = [row["held_out"][name] for row in held_out]
        axes.plot([row["tokens"] for row in held_out], losses, marker=".", label=f"held out: {name}")
    axes.grid(alpha=0.3)
    if training:
        axes.legend()
    figure.savefig(file, dpi=120)

"""Plain aligned columns for tables on stdout: no box drawing, no width of a terminal that may not be there."""

from __future__ import annotations

from collections.abc import Sequence


def table(rows: Sequence[Sequence[str]], *, left: int = 1) -> str:
    """Align ``rows`` (the first is the header) in columns; the first ``left`` columns to the left, others right."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if number < left else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def bytes_text(nbytes: float) -> str:
    """Return a size in decimal units with three digits, as disks and datasheets count."""
    for unit in ("B", "kB", "MB", "GB"):
        if nbytes < 999.5:
            return f"{nbytes:.3g} {unit}"
        nbytes /= 1000
    return f"{nbytes:.4g} TB"

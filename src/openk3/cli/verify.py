"""``openk3 verify``: is a checkpoint whole, well-formed and finite, and does it compute what was recorded?"""

from __future__ import annotations

import json as json_format
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openk3.checkpoint.resolve import resolve_model
from openk3.checkpoint.verify import Report, verify_headers
from openk3.cli.errors import UsageError
from openk3.cli.progress import Progress
from openk3.cli.table import table
from openk3.cli.terminal import note

if TYPE_CHECKING:
    from openk3.checkpoint.golden import Check, GoldenReport

_MOST_PRINTED = 100


def verify(
    model: str,
    /,
    *,
    deep: bool = False,
    manifest: Path | None = None,
    write_manifest: Path | None = None,
    golden: Path | None = None,
    limit: float | None = None,
    json: bool = False,
) -> int:
    """Check that a checkpoint is whole, well-formed and finite, and computes what it should.

    Reads headers only, unless --deep. Every fault is one line; the exit code is 1 if there is any.

    Parameters
    ----------
    model
        A folder in the published layout, or a bundled name: nano.
    deep
        Read all values too: finite, plausible scales, zero padding.
    manifest
        Compare the files with the SHA-256 digests in this file.
    write_manifest
        Write the SHA-256 digests of the files to this file.
    golden
        Run the model on the inputs recorded in this .safetensors file and compare.
    limit
        Largest difference allowed to the record, instead of the limits beside it.
    json
        Print one JSON object.
    """
    if limit is not None and golden is None:
        raise UsageError("--limit is for comparing with a record", hint="add --golden FILE, or leave --limit out")
    folder = resolve_model(model)
    report = _inspect(folder, deep=deep, manifest=manifest)
    compared = _compare(folder, golden, limit) if golden is not None and report.ok else None
    if golden is not None and compared is None:
        note("the model was not run, because its files have problems")
    _print_json(report, compared) if json else _print_text(report, compared, deep=deep)
    if write_manifest is not None and report.ok:
        _write_manifest(folder, write_manifest)
    elif write_manifest is not None:
        note(f"{write_manifest}: not written, because the files have problems")
    return 0 if report.ok and (compared is None or compared.ok) else 1


def _inspect(folder: Path, *, deep: bool, manifest: Path | None) -> Report:
    with Progress("headers", len(list(folder.glob("*.safetensors")))) as progress:
        report = verify_headers(folder, progress=progress)
    if deep:
        from openk3.checkpoint.contents import verify_contents

        with Progress("values", report.nbytes) as progress:
            verify_contents(report, progress=progress)
    if manifest is not None:
        from openk3.checkpoint.manifest import manifest_faults

        with Progress("digests", _bytes_of_files(folder)) as progress:
            report.problems += manifest_faults(folder, manifest, progress=progress)
    return report


def _bytes_of_files(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir() if path.is_file())


def _write_manifest(folder: Path, manifest: Path) -> None:
    from openk3.checkpoint.manifest import write_manifest

    with Progress("digests", _bytes_of_files(folder)) as progress:
        count = write_manifest(folder, manifest, progress=progress)
    note(f"{manifest}: digests of {count} files")


def _compare(folder: Path, golden: Path, limit: float | None) -> GoldenReport:
    from openk3.checkpoint.golden import count_comparisons, run_golden
    from openk3.checkpoint.golden_limits import find_limits

    with Progress("comparisons", count_comparisons(golden)) as progress:
        return run_golden(folder, golden, find_limits(golden, limit), progress=progress)


def _print_json(report: Report, compared: GoldenReport | None) -> None:
    data: dict[str, Any] = {
        "ok": report.ok and (compared is None or compared.ok),
        "folder": str(report.folder),
        "files": report.files,
        "tensors": report.tensors,
        "bytes": report.nbytes,
        "problems": report.problems,
        "notes": report.notes,
    }
    if compared is not None:
        data["golden"] = compared.to_dict()
    print(json_format.dumps(data, indent=2))


def _print_text(report: Report, compared: GoldenReport | None, *, deep: bool) -> None:
    print(f"{report.folder}: {report.files} files, {report.tensors:,} tensors, {report.nbytes:,} bytes")
    for remark in report.notes:
        print(f"note: {remark}")
    for problem in report.problems[:_MOST_PRINTED]:
        print(f"error: {problem}")
    if len(report.problems) > _MOST_PRINTED:
        print(f"error: {len(report.problems) - _MOST_PRINTED} more; --json lists all")
    if report.ok:
        print(
            "ok: whole, well-formed, values finite"
            if deep
            else "ok: whole and well-formed by its headers; --deep reads the values"
        )
    if compared is not None:
        _print_comparison(compared)


def _print_comparison(compared: GoldenReport) -> None:
    rows = [("recorded", "computed", "largest", "limit", "median", "limit", "")]
    print("\n" + table([*rows, *(_row(check) for check in compared.checks)], left=2))
    for name in compared.not_checked:
        print(f"not checked: {name}")
    failed = sum(not check.passed for check in compared.checks)
    print(f"limits: {compared.limits}")
    print(
        f"error: {failed} of {len(compared.checks)} comparisons are beyond their limits"
        if failed
        else f"ok: all {len(compared.checks)} comparisons are within their limits"
    )


def _row(check: Check) -> tuple[str, ...]:
    numbers = (check.largest, check.limit, check.median, check.median_limit)
    verdict = "" if check.passed else "BEYOND"
    return check.name, check.how, *(_number(value) for value in numbers), f"{verdict} {check.detail}".strip()


def _number(value: float) -> str:
    return "-" if value == float("inf") else f"{value:.2g}"

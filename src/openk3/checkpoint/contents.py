"""Are the values of a checkpoint plausible? Reads every byte, one tensor's pages in memory at a time.

Unusual: finiteness is judged on the bits, in pieces that stay in the processor's cache, which is ten times as fast as
asking for it value by value: NaN and infinity are the largest magnitudes there are.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from openk3.checkpoint.progress import Progress
from openk3.checkpoint.reader import ShardReader
from openk3.checkpoint.verify import Report
from openk3.model.config import K3Config

_CHUNK = 1 << 18
# per float dtype: integers of its width, and the bits of infinity without sign
_INFINITY = {
    torch.bfloat16: (torch.int16, 0x7F80),
    torch.float16: (torch.int16, 0x7C00),
    torch.float32: (torch.int32, 0x7F800000),
}


def verify_contents(report: Report, *, progress: Progress | None = None) -> None:
    """Add to ``report`` what is wrong with the values of its sound files; ``progress`` hears each tensor."""
    if report.config is None:
        return
    zeros: list[str] = []
    for file in report.sound_files:
        shard = ShardReader(report.folder / file)
        for stored in sorted(shard.header.tensors.values(), key=lambda stored: stored.begin):
            with shard.lend(stored.name) as view:
                where = f"{shard.header.path}: {stored.name}"
                largest = largest_bits(view)
                report.problems += [
                    f"{where}: {fault}" for fault in tensor_faults(stored.name, view, largest, report.config)
                ]
                zeros += [where] if largest == 0 and not stored.name.endswith(_WITHOUT_INFLUENCE) else []
            if progress is not None:
                progress(stored.name, stored.nbytes)
    _remark(report, zeros)


def largest_bits(values: torch.Tensor) -> int:
    """Return the largest bit pattern without sign (float dtypes) or the largest byte: 0 only if all are zero."""
    if not values.is_floating_point():
        return int(values.amax())
    integer, _ = _INFINITY[values.dtype]
    bits, mask = values.flatten().view(integer), torch.iinfo(integer).max
    return max(int((bits[start : start + _CHUNK] & mask).amax()) for start in range(0, len(bits), _CHUNK))


def tensor_faults(name: str, values: torch.Tensor, largest: int, config: K3Config) -> Iterator[str]:
    """Yield what is wrong with the values of the tensor called ``name``, whose `largest_bits` are ``largest``."""
    if values.is_floating_point() and largest >= _INFINITY[values.dtype][1]:
        bad = ~values.flatten().isfinite()
        first = int(bad.to(torch.uint8).argmax())
        yield f"{int(bad.sum())} values are NaN or infinite, first {values.flatten()[first].item()} at element {first}"
    if name.endswith(".weight_scale"):
        yield from _implausible_scales(values)
    if name.endswith(".A_log"):
        padding = values.flatten()[config.kda.num_heads :]
        if count := int(padding.count_nonzero()):
            yield f"its padding after {config.kda.num_heads} heads is not zero: {count} of {len(padding)} values"


def _implausible_scales(scales: torch.Tensor) -> Iterator[str]:
    least, most = (int(bound) for bound in scales.aminmax())
    for byte, meaning, found in ((0, "2**-127", least), (255, "NaN", most)):
        if found == byte:
            count = int((scales == byte).sum())
            yield f"{count} of {scales.numel()} scale bytes are {byte} ({meaning}), not expected in a trained model"


# layer 0's attention has one source only, so its query never gets a gradient and stays as it began
_WITHOUT_INFLUENCE = ".layers.0.self_attention_res_proj.weight"


def _remark(report: Report, zeros: list[str]) -> None:
    """Note what is no fault in itself: tensors of nothing but zeros, and files that could not be judged."""
    if zeros:
        others = f" and {len(zeros) - 1} more" if len(zeros) > 1 else ""
        report.notes.append(f"{zeros[0]}{others}: all zero, so untrained or lost in copying")
    skipped = report.files - len(report.sound_files)
    if skipped:
        report.notes.append(f"the values of {skipped} files were not read, their headers have problems")

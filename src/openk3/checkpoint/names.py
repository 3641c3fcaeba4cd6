"""Names in the file <-> parameter paths in the module, one to one in both directions.

Unusual: routed experts are separate tensors in the file and slices of one stacked parameter in the module.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from openk3.errors import TensorError
from openk3.model.catalogue import TEXT_PREFIX

_NUMBER = "(0|[1-9][0-9]*)"
_EXPERTS = rf"model\.layers\.{_NUMBER}\.block_sparse_moe\.experts"
_STORED_EXPERT = re.compile(
    rf"(?P<stack>{_EXPERTS})\.(?P<expert>{_NUMBER})\.(?P<matrix>w[123])\.weight(?P<part>|_packed|_scale)"
)
_STACKED_EXPERT = re.compile(rf"(?P<stack>{_EXPERTS})\.(?P<matrix>w[123])(?P<part>|_packed|_scale)")
_TEXT_ROOTS = ("model.", "lm_head.")
VISION_ROOTS = ("vision_tower.", "mm_projector.")


class Slot(NamedTuple):
    """Where a tensor goes: a parameter path, and the expert's index if the parameter stacks experts."""

    parameter: str
    expert: int | None = None


def to_slot(name: str) -> Slot:
    """Return the slot of the tensor called ``name`` in the file; raise `TensorError` for names outside the layout."""
    if name.startswith(VISION_ROOTS):
        return Slot(name)
    path = name.removeprefix(TEXT_PREFIX)
    if path == name or not path.startswith(_TEXT_ROOTS):
        raise TensorError(
            f"{name}: not a name of the published layout, expected one under {TEXT_PREFIX}, {', '.join(VISION_ROOTS)}"
        )
    if match := _STORED_EXPERT.fullmatch(path):
        return Slot(f"{match['stack']}.{match['matrix']}{match['part']}", int(match["expert"]))
    return Slot(path)


def to_name(slot: Slot) -> str:
    """Return the name in the file of ``slot``: the inverse of `to_slot`; raise `TensorError` if there is none."""
    if slot.parameter.startswith(VISION_ROOTS) and slot.expert is None:
        return slot.parameter
    match = _STACKED_EXPERT.fullmatch(slot.parameter)
    if (match is None) != (slot.expert is None) or not slot.parameter.startswith(_TEXT_ROOTS):
        raise TensorError(f"{slot.parameter}: not a slot of the published layout with expert {slot.expert}")
    if match is None:
        return TEXT_PREFIX + slot.parameter
    return f"{TEXT_PREFIX}{match['stack']}.{slot.expert}.{match['matrix']}.weight{match['part']}"

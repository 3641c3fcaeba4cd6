"""Names in the file and slots in the module are one to one, for every tensor of the published model."""

from __future__ import annotations

import pytest

from openk3.checkpoint.names import Slot, to_name, to_slot
from openk3.errors import TensorError
from openk3.model.catalogue import catalogue, expand
from openk3.model.presets import preset


def test_bijection_over_all_published_names() -> None:
    slots = set()
    for name, spec, expert in expand(catalogue(preset("k3"), vision=True)):
        slot = to_slot(name)
        assert slot == Slot(spec.parameter, expert if spec.per_expert else None)
        assert to_name(slot) == name
        slots.add(slot)
    assert len(slots) == 497_220


def test_unquantised_and_mtp_names() -> None:
    prefix = "language_model.model.layers.4."
    assert to_slot(prefix + "block_sparse_moe.experts.7.w2.weight") == ("model.layers.4.block_sparse_moe.experts.w2", 7)
    assert to_name(Slot("model.layers.4.block_sparse_moe.experts.w2", 7)) == (
        prefix + "block_sparse_moe.experts.7.w2.weight"
    )
    assert to_slot(prefix + "eh_proj.weight") == ("model.layers.4.eh_proj.weight", None)


@pytest.mark.parametrize(
    "name",
    [
        "model.norm.weight",
        "language_model.",
        "language_model.norm.weight",
        "",
        "language_model.vision_tower.x",
        "encoder.weight",
    ],
)
def test_foreign_names_are_refused(name: str) -> None:
    with pytest.raises(TensorError, match="not a name of the published layout"):
        to_slot(name)


@pytest.mark.parametrize(
    "slot",
    [
        Slot("model.norm.weight", 3),
        Slot("model.layers.1.block_sparse_moe.experts.w1"),
        Slot("vision_tower.x", 1),
        Slot("norm.weight"),
    ],
)
def test_foreign_slots_are_refused(slot: Slot) -> None:
    with pytest.raises(TensorError, match="not a slot"):
        to_name(slot)


def test_expert_numbers_have_one_spelling() -> None:
    name = "language_model.model.layers.1.block_sparse_moe.experts.07.w1.weight"
    assert to_slot(name).expert is None

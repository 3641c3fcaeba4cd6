"""The published model's terms are shown for it and for nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from openk3.model.licence import licence_terms
from openk3.model.presets import PRESETS, preset


def test_the_published_model_has_terms() -> None:
    text = "\n".join(licence_terms(preset("k3")))
    assert len(licence_terms(preset("k3"))) == 3
    assert all(fact in text for fact in ("20 million US$", "100 million", '"Kimi K3"', "Internal use is exempt"))


def test_other_formats_of_its_weights_have_them_too() -> None:
    assert licence_terms(replace(preset("k3"), quantized_experts=False, vision=None, max_position_embeddings=4096))


@pytest.mark.parametrize("name", [name for name in PRESETS if name != "k3"])
def test_other_models_have_none(name: str) -> None:
    assert licence_terms(preset(name)) == ()

"""The terms of the published weights, to be shown where they are used: one fact a line, for whoever runs them.

Unusual: a model is known by its shape, so that a folder of any name is recognised and a small one of our own is not.
"""

from __future__ import annotations

from openk3.model.config import K3Config
from openk3.model.presets import preset

_TERMS = (
    "Kimi K3 licence: keep its notice with the weights. Internal use is exempt from both limits below.",
    "  A model-as-a-service business with over 20 million US$ revenue in 12 months needs an agreement with Moonshot.",
    '  A product with over 100 million users, or 20 million US$ revenue, a month has to show "Kimi K3" to its users.',
)


def licence_terms(config: K3Config) -> tuple[str, ...]:
    """Return the lines to show to whoever uses a model's weights; none if it is not the published model."""
    return _TERMS if _shape(config) == _shape(preset("k3")) else ()


def _shape(config: K3Config) -> tuple[object, ...]:
    return config.layer_kinds, config.hidden_size, config.vocab_size, config.moe.num_experts

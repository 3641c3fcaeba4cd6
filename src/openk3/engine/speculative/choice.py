"""The drafter that a configuration asks for."""

from __future__ import annotations

from openk3.engine.config import EngineConfig
from openk3.engine.memory import draft_portion
from openk3.engine.speculative.draft_model import DraftModelDrafter
from openk3.engine.speculative.drafter import Drafter
from openk3.engine.speculative.mtp import MTPDrafter
from openk3.engine.speculative.ngram import NgramDrafter
from openk3.errors import ConfigError
from openk3.model.model import K3ForCausalLM


def make_drafter(model: K3ForCausalLM, config: EngineConfig, draft_model: K3ForCausalLM | None) -> Drafter | None:
    """Make the drafter that ``config.speculate`` names, None for "off".

    Raises:
        ConfigError: a draft model is missing, not asked for or has another vocabulary, or there is no MTP layer.
    """
    if (draft_model is not None) != (config.speculate == "draft"):
        given = "without" if draft_model is None else "with"
        raise ConfigError(
            f"speculate is {config.speculate!r} {given} a draft model",
            hint="give a draft model together with speculate draft, and only then",
        )
    if config.speculate == "ngram":
        return NgramDrafter(config.speculate_depth)
    if config.speculate == "mtp":
        return MTPDrafter(model, config.speculate_depth)
    if draft_model is not None:
        return DraftModelDrafter(model, draft_model, config.speculate_depth, draft_portion(config))
    return None

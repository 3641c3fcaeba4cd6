"""The model as the server's parts see it, and the list of models as clients see it.

Unusual: there is one model; each of its names is listed as a model of its own, since clients look for theirs.
"""

from __future__ import annotations

import time
from typing import Any

from openk3.llm.llm import LLM
from openk3.server.endpoint import ServedModel, require_model
from openk3.server.settings import ServerSettings

_OWNER = "openk3"


def served_model(llm: LLM, settings: ServerSettings) -> ServedModel:
    """Tell endpoints of a model under the names that ``settings`` give it, or what it was loaded as."""
    return ServedModel(
        names=settings.names or (llm.about.partition(":")[0],),
        tokenizer=llm.tokenizer,
        sampling=llm.sampling,
        max_tokens=llm.max_tokens,
        free_sampling=settings.free_sampling,
        created=int(time.time()),
    )


def models_list(model: ServedModel) -> dict[str, Any]:
    """Return the body of the list of models: each name is one."""
    return {"object": "list", "data": [_item(name, model) for name in model.names]}


def model_item(name: str, model: ServedModel) -> dict[str, Any]:
    """Return the body of one model; raise `Fault` (404) if there is none of that name."""
    return _item(require_model(name, model), model)


def _item(name: str, model: ServedModel) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": model.created,
        "owned_by": _OWNER,
        "context_length": model.max_tokens,
        "supports_image_in": False,
        "supports_video_in": False,
        "supports_reasoning": True,
    }


def why_not_running(llm: LLM) -> str | None:
    """Say why nothing more will be answered; None if it will be."""
    return None if llm.is_running else "the engine has stopped"

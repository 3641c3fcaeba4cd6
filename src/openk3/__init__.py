"""OpenK3: the Kimi K3 system, from training to a measured deployment.

Unusual: importing this package imports nothing else; `LLM` and the types that go with it are found when they are first
used, and torch with `LLM`.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from openk3.engine.config import EngineConfig
    from openk3.errors import OpenK3Error
    from openk3.llm.llm import LLM
    from openk3.protocol.messages import Message, ResponseFormat
    from openk3.protocol.sampling import SamplingParams

__version__ = "0.1.0"
__all__ = ["LLM", "EngineConfig", "Message", "OpenK3Error", "ResponseFormat", "SamplingParams", "__version__"]

_HOMES = {
    "LLM": "openk3.llm.llm",
    "EngineConfig": "openk3.engine.config",
    "Message": "openk3.protocol.messages",
    "OpenK3Error": "openk3.errors",
    "ResponseFormat": "openk3.protocol.messages",
    "SamplingParams": "openk3.protocol.sampling",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__

"""OpenK3: the Kimi K3 system, from training to a measured deployment.

Unusual: importing this package imports nothing else; `LLM` is found when it is first used, and torch with it.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from openk3.llm.llm import LLM

__version__ = "0.1.0"
__all__ = ["LLM", "__version__"]


def __getattr__(name: str) -> object:
    if name != "LLM":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return import_module("openk3.llm.llm").LLM

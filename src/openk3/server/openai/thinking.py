"""Whether and how much to think, in each of the ways that clients say it.

Unusual: of several switches the more specific one counts, and a level that the model does not have is never replaced.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, cast

from openk3.server.faults import Fault
from openk3.server.values import Fields, Value

_LEVELS = ("low", "high", "max")


class Thinking(NamedTuple):
    """Whether to think, and how much; the latter has no meaning without the former."""

    enabled: bool
    effort: Literal["low", "high", "max"] = "max"


def read_thinking(body: Fields, effort: Value | None = None) -> Thinking:
    """Read the switches: ``thinking``, ``chat_template_kwargs``, ``enable_thinking``, ``reasoning_effort``, in order.

    ``effort`` is the last one where it has another place in the body.

    Raises:
        Fault: one that is none, or a level that the model does not have (400).
    """
    switches = body.fields("thinking", 'an object: {"type": "enabled"}') or Fields({}, "thinking")
    template = body.fields("chat_template_kwargs") or Fields({}, "chat_template_kwargs")
    effort = effort or body.get("reasoning_effort")
    if not _is_enabled(body, switches, template, effort):
        return Thinking(False)
    _require_kept(switches, template)
    given = switches.get("effort") or template.get("thinking_effort")
    if given is None and effort and effort.value != "none":
        given = effort
    return Thinking(True, _level(given))


def _is_enabled(body: Fields, switches: Fields, template: Fields, effort: Value | None) -> bool:
    kind = switches.choice("type", ("enabled", "disabled"))
    if kind is not None:
        return kind == "enabled"
    for fields, name in ((template, "thinking"), (template, "enable_thinking"), (body, "enable_thinking")):
        if (flag := fields.flag(name)) is not None:
            return flag
    if "effort" in switches or "thinking_effort" in template:
        return True
    return not (effort and effort.value == "none")


def _require_kept(switches: Fields, template: Fields) -> None:
    """Refuse to forget reasoning: the model was trained to see all that it ever thought."""
    keep = switches.get("keep")
    if keep and keep.value != "all":
        raise keep.fault('"all": reasoning of earlier turns is always kept')
    if template.flag("preserve_thinking") is False:
        path = template.path_of("preserve_thinking")
        raise Fault(f"{path} is false, expected true: reasoning of earlier turns is always kept", param=path)


def _level(given: Value | None) -> Literal["low", "high", "max"]:
    if given is None:
        return "max"
    return cast('Literal["low", "high", "max"]', given.choice(_LEVELS))

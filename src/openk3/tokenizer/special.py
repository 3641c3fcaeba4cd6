"""Special tokens: ids of their own, after the ordinary ones, that no text is ever encoded to.

Unusual: every id of the block has a spelling. One without a name is ``<|reserved_token_<id>|>``; one with a name has
only that name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

from openk3.errors import TokenizerError

BLOCK_SIZE = 256
"""How many special ids follow the ordinary ones in the published vocabulary."""

# Kimi K3's tokenizer, as positions in the block.
PUBLISHED_NAMES: Mapping[int, str] = MappingProxyType(
    {
        0: "[BOS]",
        1: "[EOS]",
        2: "<|end_of_msg|>",
        3: "<|open|>",
        4: "<|close|>",
        5: "<|sep|>",
        6: "[start_header_id]",
        7: "[end_header_id]",
        9: "[EOT]",
        18: "<|media_begin|>",
        19: "<|media_content|>",
        20: "<|media_end|>",
        21: "<|media_pad|>",
        65: "<osagent_mode>",
        254: "[UNK]",
        255: "[PAD]",
    }
)


def reserved_name(token: int) -> str:
    """Spell a special id that has no name."""
    return f"<|reserved_token_{token}|>"


@dataclass(frozen=True)
class SpecialTokens:
    """The special ids of a vocabulary, one contiguous block, each with its spelling.

    An attribute of a token that this vocabulary lacks raises `TokenizerError`.
    """

    names: Mapping[int, str]
    bos_token: str = "[BOS]"
    eos_token: str = "[EOS]"
    pad_token: str = "[PAD]"
    unk_token: str = "[UNK]"

    def __post_init__(self) -> None:
        names = dict(sorted(self.names.items()))
        object.__setattr__(self, "names", MappingProxyType(names))
        if names and list(names) != list(range(min(names), max(names) + 1)):
            raise TokenizerError(f"special ids are {_shorten(list(names))}, expected one id after the other")
        seen: dict[str, int] = {}
        for token, name in names.items():
            if not name or name in seen:
                fault = f"is spelled like id {seen[name]}: {name!r}" if name else "has an empty spelling"
                raise TokenizerError(f"special id {token} {fault}, expected a spelling of its own")
            seen[name] = token

    @classmethod
    def block(
        cls, first: int, size: int = BLOCK_SIZE, names: Mapping[int, str] | None = None, **roles: str
    ) -> SpecialTokens:
        """Make a block of ``size`` ids from ``first`` on; ``names`` maps ids to spellings (default: as published)."""
        if names is None:
            names = {first + position: name for position, name in PUBLISHED_NAMES.items() if position < size}
        for token in names:
            if not first <= token < first + size:
                raise TokenizerError(
                    f"special token {names[token]!r} has id {token}, expected {first} to {first + size - 1}",
                    hint="special ids come after the ordinary tokens and below the model's vocab_size",
                )
        return cls({token: names.get(token) or reserved_name(token) for token in range(first, first + size)}, **roles)

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {name: token for token, name in self.names.items()}

    def id_of(self, name: str) -> int:
        """Give the id of the token spelled ``name``; raise `TokenizerError` if there is none."""
        try:
            return self._ids[name]
        except KeyError:
            raise TokenizerError(
                f"the vocabulary has no special token {name!r}",
                hint="name it in added_tokens_decoder of tokenizer_config.json, beside the vocabulary",
            ) from None

    @property
    def bos(self) -> int:
        """Beginning of a sequence; the chat format never writes it."""
        return self.id_of(self.bos_token)

    @property
    def eos(self) -> int:
        """End of a plain text; an answer ends with ``end_of_msg`` instead."""
        return self.id_of(self.eos_token)

    @property
    def pad(self) -> int:
        """Padding."""
        return self.id_of(self.pad_token)

    @property
    def unk(self) -> int:
        """An unknown token; byte-level BPE never needs it."""
        return self.id_of(self.unk_token)

    @property
    def end_of_msg(self) -> int:
        """End of a message, which is where a model stops."""
        return self.id_of("<|end_of_msg|>")

    @property
    def open(self) -> int:
        """Begins an opening tag."""
        return self.id_of("<|open|>")

    @property
    def close(self) -> int:
        """Begins a closing tag."""
        return self.id_of("<|close|>")

    @property
    def sep(self) -> int:
        """Ends a tag."""
        return self.id_of("<|sep|>")

    @property
    def media_begin(self) -> int:
        """Begins an image or other medium."""
        return self.id_of("<|media_begin|>")

    @property
    def media_content(self) -> int:
        """Stands between a medium's description and its placeholders."""
        return self.id_of("<|media_content|>")

    @property
    def media_end(self) -> int:
        """Ends a medium."""
        return self.id_of("<|media_end|>")

    @property
    def media_pad(self) -> int:
        """Holds the place of one visual token, whose embedding comes from the vision tower."""
        return self.id_of("<|media_pad|>")


def _shorten(ids: list[int]) -> str:
    return str(ids) if len(ids) < 8 else f"{ids[:3]} … {ids[-3:]}"

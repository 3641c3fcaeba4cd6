"""Names of prefixes: one 16-byte hash per complete unit of tokens, each over everything before it.

Unusual: a name covers all that the computation depends on and token ids do not show: the salt and the images.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b

from openk3.errors import ConfigError
from openk3.protocol.request import MediaSpan

CHUNK = 16
"""States exist at multiples of this position only, the chunk of the linear attention."""

_ID_BYTES = 4
_KEY_BYTES = 16


def check_unit(unit: int) -> int:
    """Return ``unit``; raise ConfigError unless it is a positive multiple of the chunk."""
    if unit < CHUNK or unit % CHUNK:
        raise ConfigError(f"the identity unit is {unit} tokens, expected a positive multiple of {CHUNK}")
    return unit


class HashChain:
    """The names of all prefixes of one sequence that are whole units long; ``keys[i]`` names the first i + 1 units.

    Two prefixes have equal names only if salt, unit, token ids and the images up to there are all equal.
    """

    def __init__(self, unit: int = CHUNK, *, salt: bytes = b"", media: Sequence[MediaSpan] = ()) -> None:
        self.unit = check_unit(unit)
        self.keys: list[bytes] = []
        self._last = blake2b(b"%d:" % unit + salt, digest_size=_KEY_BYTES, person=b"openk3-root").digest()
        self._pending = array("I")
        self._media = _by_unit(media, unit)

    @property
    def num_tokens(self) -> int:
        """Tokens seen so far, the incomplete unit included."""
        return len(self.keys) * self.unit + len(self._pending)

    def extend(self, ids: Sequence[int]) -> None:
        """Append token ids; raises ConfigError for an id that is not in 0 .. 2^32 - 1, then none is appended."""
        try:
            pending = self._pending + array("I", ids)
        except (OverflowError, TypeError) as error:
            raise ConfigError(f"a token id cannot be named: {error}, expected integers from 0 to 4294967295") from None
        whole = len(pending) // self.unit * self.unit
        self._pending = pending[whole:]
        self._chain(pending[:whole].tobytes())

    def _chain(self, packed: bytes) -> None:
        last, keys, media, step = self._last, self.keys, self._media, self.unit * _ID_BYTES
        for start in range(0, len(packed), step):
            # Fixed lengths up to here, so images appended behind them cannot be mistaken for ids.
            data = last + packed[start : start + step]
            if media and (images := media.get(len(keys))):
                data += images
            last = blake2b(data, digest_size=_KEY_BYTES).digest()
            keys.append(last)
        self._last = last


def _by_unit(media: Sequence[MediaSpan], unit: int) -> dict[int, bytes]:
    """Return what images add to the name of the unit in which they begin; the chain carries it further."""
    added: dict[int, bytes] = {}
    end = 0
    for span in sorted(media, key=lambda span: span.start):
        if span.start < end:
            raise ConfigError(f"two images overlap at token {span.start}, expected one image per position")
        end = span.start + span.length
        fields = b"".join(number.to_bytes(8, "little") for number in (span.start, span.length, len(span.digest)))
        added[span.start // unit] = added.get(span.start // unit, b"") + fields + span.digest
    return added

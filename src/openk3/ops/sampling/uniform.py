"""The random numbers of sampling: one for each place of an answer, a function of seed and place.

Unusual: there is no generator whose state could depend on batches, drafts or what was computed twice.
"""

from __future__ import annotations

import struct
from hashlib import blake2b

# Keeps these numbers apart from any other use of the same seed.
_PURPOSE = b"openk3 token"


def uniform(seed: int, index: int) -> float:
    """Return the number in [0, 1), a multiple of 2^-53, of ``seed`` and ``index`` (64 bits each)."""
    digest = blake2b(struct.pack("<QQ", seed, index), digest_size=8, person=_PURPOSE).digest()
    return (int.from_bytes(digest, "little") >> 11) * 2.0**-53

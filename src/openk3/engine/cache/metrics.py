"""What the prefix cache has done, as numbers.

Unusual: the cache counts inside the calls that do the work, so no caller can forget to.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class DiskMetrics:
    """Counts of checkpoints in files since the start, and what is stored now.

    ``drops`` were not written (queue or disk full, parent gone), ``damaged`` were found broken or foreign and removed,
    ``evictions`` made room for others.
    """

    hits: int = 0
    writes: int = 0
    drops: int = 0
    damaged: int = 0
    evictions: int = 0
    files: int = 0
    bytes: int = 0
    pending: int = 0


@dataclass(frozen=True)
class CacheMetrics:
    """Counts since the start, and what is held now.

    Of ``lookup_tokens`` that could have been reused, ``hit_tokens`` were; ``granularity_tokens`` had been computed
    before but lay above the deepest checkpoint. ``refused`` checkpoints found no room.
    """

    lookups: int = 0
    hits: int = 0
    lookup_tokens: int = 0
    hit_tokens: int = 0
    granularity_tokens: int = 0
    published: int = 0
    refused: int = 0
    evictions: int = 0
    checkpoints: int = 0
    checkpoint_bytes: int = 0
    sightings: int = 0
    disk: DiskMetrics = field(default_factory=DiskMetrics)

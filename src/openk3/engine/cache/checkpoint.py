"""One reusable point of a prefix: the state at a position and the pages of latents below it.

Unusual: checkpoints form a tree by prefix, and each knows the names of the units between its parent and itself, so that
one can be put in between, or taken out, without the tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(eq=False)
class Checkpoint:
    """Immutable contents: the state at ``position`` and pages for tokens 0 to ``position`` - 1.

    Rows of the last page from ``position`` on are not part of it; the sequence that published it may still write there.
    """

    key: bytes
    position: int
    state_blocks: list[int]
    page_index: NDArray[np.int64]
    segment: list[bytes]  # names of the units after the parent's position, the last one is ``key``
    parent: Checkpoint | None = None
    children: set[Checkpoint] = field(default_factory=set)
    pins: int = 0
    hits: int = 0
    clock: float = 0.0  # age of the ranking when this was last used

    @property
    def pages(self) -> list[int]:
        """Blocks that hold tokens 0 to ``position`` - 1, in order."""
        return [int(page) for page in self.page_index]

    @property
    def saved_tokens(self) -> int:
        """Tokens that would have to be computed again without this checkpoint, but with its parent."""
        return self.position - (self.parent.position if self.parent else 0)


def attach(child: Checkpoint, parent: Checkpoint | None, siblings: set[Checkpoint]) -> None:
    """Put ``child`` below ``parent``; those of ``siblings`` that continue its prefix move below it.

    ``siblings`` are the checkpoints that have been directly below ``parent`` (or below none), and is updated.
    """
    child.parent = parent
    index = len(child.segment)
    deeper = {other for other in siblings if len(other.segment) > index and other.segment[index - 1] == child.key}
    for other in deeper:
        other.parent = child
        other.segment = other.segment[index:]
    child.children = deeper
    siblings -= deeper
    siblings.add(child)


def detach(gone: Checkpoint, siblings: set[Checkpoint]) -> None:
    """Take ``gone`` out of the tree; what was below it is now below its parent, among ``siblings``."""
    siblings.remove(gone)
    for child in gone.children:
        child.parent = gone.parent
        child.segment = gone.segment + child.segment
    siblings |= gone.children
    gone.children, gone.parent = set(), None

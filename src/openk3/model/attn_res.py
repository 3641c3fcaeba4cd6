"""The residual stream of block attention residuals: a running sum, and the finished sums of earlier blocks.

Unusual: a sublayer reads a mix of all of them but adds its output to the running sum only; there is no other residual
path. A block is counted in whole layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor

from openk3.ops.attn_res.recompute import mix
from openk3.ops.attn_res.two_phase import StoredMix, merge_partial, mix_stored


class ResidualStream:
    """Sources that one forward pass accumulates, each [N, d] in the model's dtype (Attention Residuals, section 3)."""

    def __init__(self, embedding: Tensor, eps: float) -> None:
        self.sources: list[Tensor] = []
        self.partial: Tensor | None = embedding
        self.eps = eps

    def close_block(self) -> None:
        """Store the running sum as a source and start a new one."""
        assert self.partial is not None, "a block was closed before anything was added to it"
        self.sources.append(self.partial)
        self.partial = None

    def add(self, output: Tensor) -> None:
        """Add a sublayer's output [N, d] to the running sum."""
        self.partial = output if self.partial is None else self.partial + output

    def mix(self, query: Tensor) -> Tensor:
        """Return what the sublayer with pseudo-query ``query`` [d] reads, [N, d]."""
        assert self.partial is not None, "a mix was asked for before anything was added to the block"
        sources = [*self.sources, self.partial]
        return sources[0] if len(sources) == 1 else mix(sources, query, self.eps)


class TwoPhaseStream(ResidualStream):
    """The same stream, evaluating at each block's start what its stored sources give to all the block's queries.

    ``queries_of_block`` lists, for the n-th closed block, the pseudo-queries [d] that will be mixed until the next,
    in order.
    """

    def __init__(self, embedding: Tensor, eps: float, queries_of_block: Sequence[Sequence[Tensor]]) -> None:
        super().__init__(embedding, eps)
        self.queries_of_block = queries_of_block
        self.stored: Iterator[StoredMix] = iter(())

    def close_block(self) -> None:
        """Store the running sum, then evaluate the stored sources for the queries of the block that begins."""
        super().close_block()
        self.stored = iter(mix_stored(self.sources, self.queries_of_block[len(self.sources) - 1], self.eps))

    def mix(self, query: Tensor) -> Tensor:
        """Return the mix [N, d] of the stored sources and the running sum."""
        assert self.partial is not None, "a mix was asked for before anything was added to the block"
        if not self.sources:
            return super().mix(query)
        return merge_partial(next(self.stored), self.partial, query, self.eps)

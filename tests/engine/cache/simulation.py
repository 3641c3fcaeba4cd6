"""A stand-in for the model: the row of a token and the state after it are hashes of all that they depend on.

Unusual: whatever a cache hands back can so be checked to the byte; any mix-up of prefixes, positions or salts shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path

import torch
from torch import Tensor

from openk3.engine.cache.arena import Arena
from openk3.engine.cache.blocks import BlockPool
from openk3.engine.cache.checkpoint import Checkpoint
from openk3.engine.cache.disk import DiskTier
from openk3.engine.cache.identity import HashChain
from openk3.engine.cache.prefix import PrefixCache

REPOSITORY = Path(__file__).resolve().parents[3]

LAYERS, WIDTH = 2, 8  # of int16: 32 bytes a row


def true_rows(ids: Sequence[int], salt: bytes = b"") -> Tensor:
    """Rows [tokens, layers, width] int16: each a hash of the salt and of the ids up to its own."""
    last, rows = blake2b(salt).digest(), []
    for token in ids:
        last = blake2b(last + token.to_bytes(4, "little"), digest_size=LAYERS * WIDTH * 2).digest()
        rows.append(last)
    flat = torch.frombuffer(bytearray(b"".join(rows)), dtype=torch.int16) if rows else torch.empty(0, dtype=torch.int16)
    return flat.view(-1, LAYERS, WIDTH)


def true_state(ids: Sequence[int], num_bytes: int, salt: bytes = b"") -> Tensor:
    """State [num_bytes] uint8 after these ids."""
    row = true_rows(ids, salt)[-1].flatten().view(torch.uint8)
    return row.repeat(-(-num_bytes // row.numel()))[:num_bytes] ^ torch.arange(num_bytes, dtype=torch.uint8)


@dataclass(eq=False)
class Live:
    """A running sequence: rows of ``ids[:position]`` are written in its pages, the last of which it may share."""

    ids: list[int]
    salt: bytes
    chain: HashChain
    pages: list[int] = field(default_factory=list)
    position: int = 0


class Bench:
    """Pool, arena and cache, and what an engine does with them."""

    def __init__(
        self,
        num_blocks: int = 64,
        *,
        unit: int = 16,
        page_size: int = 16,
        state_bytes: int = 700,
        folder: Path | None = None,
        max_bytes: int = 1 << 20,
    ) -> None:
        self.unit, self.page_size, self.state_bytes = unit, page_size, state_bytes
        self.pool = BlockPool(num_blocks)
        self.arena = Arena(num_blocks, LAYERS * page_size * WIDTH * 2)
        self.latents = self.arena.latents(torch.int16, LAYERS, page_size, WIDTH)
        self.disk = DiskTier(folder, "model", max_bytes) if folder else None
        self.cache = PrefixCache(
            unit,
            page_size,
            self.pool,
            self.arena,
            state_bytes,
            latents=self.latents,
            disk=self.disk,
            max_sightings=4096,
        )

    def chain(self, ids: Sequence[int], salt: bytes = b"") -> HashChain:
        chain = HashChain(self.unit, salt=salt)
        chain.extend(ids)
        return chain

    def start(self, ids: Sequence[int], salt: bytes = b"") -> Live | None:
        """Resume a prompt as an engine does, checking what it is given; None if there is no block."""
        live = Live(list(ids), salt, self.chain(ids, salt))
        match = self.cache.match(live.chain.keys, len(ids) - 1)
        assert match.resumed_tokens <= match.matched_tokens <= len(ids) - 1
        if (checkpoint := match.checkpoint) is None:
            return live
        self.check(checkpoint, ids, salt)
        whole = checkpoint.position // self.page_size
        live.pages, live.position = checkpoint.pages[:whole], checkpoint.position
        self.pool.retain(live.pages)
        if rest := checkpoint.position % self.page_size:
            page = self.take()
            if page is None:
                self.stop(live)
                self.cache.unpin(checkpoint)
                return None
            self.latents[page, :, :rest] = self.latents[checkpoint.pages[whole], :, :rest]
            live.pages.append(page)
        self.cache.unpin(checkpoint)
        return live

    def take(self) -> int | None:
        return self.pool.allocate(1)[0] if self.cache.make_room(1) else None  # type: ignore[index]

    def advance(self, live: Live, tokens: int) -> bool:
        """Compute further tokens; False if there is no block for them."""
        stop = min(len(live.ids), live.position + tokens)
        rows = true_rows(live.ids[:stop], live.salt)
        for at in range(live.position, stop):
            if at % self.page_size == 0:
                if (page := self.take()) is None:
                    return False
                live.pages.append(page)
            self.latents[live.pages[at // self.page_size], :, at % self.page_size] = rows[at]
            live.position = at + 1
        self.cache.sighted(live.chain.keys[: live.position // self.unit])
        return True

    def publish(self, live: Live, position: int | None = None) -> bool:
        at = live.position // self.unit * self.unit if position is None else position
        return self.cache.publish(
            live.chain.keys, at, live.pages, lambda: true_state(live.ids[:at], self.state_bytes, live.salt)
        )

    def stop(self, live: Live) -> None:
        self.pool.release(live.pages)
        live.pages = []

    def run(self, ids: Sequence[int], salt: bytes = b"", *, at: Sequence[int] = ()) -> int:
        """Compute a prompt to its end, publishing at ``at`` (its end if empty); return the tokens that were resumed."""
        live = self.start(ids, salt)
        assert live is not None
        resumed = live.position
        for position in at or [(len(ids) - 1) // self.unit * self.unit]:
            if position > live.position:
                assert self.advance(live, position - live.position)
                assert self.publish(live)
        assert self.advance(live, len(ids))
        self.stop(live)
        return resumed

    def check(self, checkpoint: Checkpoint, ids: Sequence[int], salt: bytes = b"") -> None:
        """What the checkpoint holds is what computing these ids would give, to the last bit."""
        at = checkpoint.position
        assert torch.equal(self.cache.state(checkpoint), true_state(ids[:at], self.state_bytes, salt))
        rows = self.latents[checkpoint.pages].transpose(1, 2).flatten(0, 1)[:at]
        assert torch.equal(rows, true_rows(ids[:at], salt))


def prompt(length: int, seed: int = 0) -> list[int]:
    """Ids that differ between seeds from the first token on."""
    return [(seed * 1009 + i * 7) % 500 for i in range(length)]

"""Checkpoints in files: they outlive the process and the eviction from memory.

Unusual: a file holds only what its parent does not. Files are ordered so that a parent is always younger than its
children; the oldest file therefore never has a child, and removing it orphans nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TextIO

from torch import Tensor

from openk3.engine.cache.metrics import DiskMetrics
from openk3.engine.cache.record import (
    TEMPORARY,
    DamagedRecordError,
    Record,
    RecordHeader,
    read_header,
    read_record,
    write_record,
)
from openk3.errors import ConfigError

_SUFFIX = ".prefix"
_LOCK = ".openk3-lock"
_log = logging.getLogger(__name__)


def open_disk_tier(folder: Path, fingerprint: str, max_bytes: int) -> DiskTier | None:
    """Return the tier, or None after a logged warning if the folder is in use or unusable."""
    try:
        return DiskTier(folder, fingerprint, max_bytes)
    except ConfigError as error:
        _log.warning("prefix cache on disk is off: %s", error)
        return None


class DiskTier:
    """Checkpoints of one model in ``folder``, at most ``max_bytes`` together, the least recently used ones removed.

    ``fingerprint`` names everything that decides the bits: weights, dtypes, kernels, layout. Files of other
    fingerprints, and broken ones, are removed and counted. Writing happens in one thread, from a queue of at most
    ``max_pending_bytes`` bytes (or one checkpoint); what does not fit in it is dropped and counted.

    Raises:
        ConfigError: the folder cannot be used, or another process uses it.
    """

    def __init__(self, folder: Path, fingerprint: str, max_bytes: int, *, max_pending_bytes: int = 1 << 28) -> None:
        self._folder, self._fingerprint = folder, fingerprint
        self._max_bytes, self._max_pending_bytes = max_bytes, max_pending_bytes
        self._changed = threading.Condition()
        self._index: OrderedDict[bytes, RecordHeader] = OrderedDict()  # oldest first
        self._queue: deque[Record] = deque()
        self._pending: dict[bytes, int] = {}
        self._num_bytes = 0
        self._closed = False
        self._counts = DiskMetrics()
        self._lock = _lock_folder(folder)
        try:
            self._scan()
        except OSError as error:
            self._lock.close()
            raise ConfigError(f"{folder}: cannot be read: {error}", hint="choose another folder") from None
        self._writer = threading.Thread(target=self._write_queued, name="openk3-prefix-disk", daemon=True)
        self._writer.start()

    @property
    def metrics(self) -> DiskMetrics:
        """Counts so far and what is stored."""
        with self._changed:
            return replace(self._counts, files=len(self._index), bytes=self._num_bytes, pending=len(self._pending))

    def __contains__(self, key: bytes) -> bool:
        return key in self._index

    def parent_of(self, keys: Sequence[bytes], count: int) -> int:
        """Return how many of the first ``count`` units the deepest stored or queued checkpoint covers."""
        with self._changed:
            return next(
                (n for n in range(count, 0, -1) if keys[n - 1] in self._index or keys[n - 1] in self._pending), 0
            )

    def save(
        self,
        key: bytes,
        position: int,
        parent: tuple[bytes, int] | None,
        sizes: tuple[int, int],
        contents: Callable[[], tuple[Tensor, Tensor]],
    ) -> bool:
        """Queue the checkpoint ``key`` at ``position``; ``parent`` is the stored one it builds on and its position.

        ``sizes`` are the bytes of the state and of one token's row. ``contents``, called only if there is room in the
        queue, returns copies on the CPU: state [bytes] and rows [tokens since the parent, bytes], uint8.
        """
        above, start = parent or (None, 0)
        header = RecordHeader(self._fingerprint, key, position, above, start, *sizes)
        size = header.file_bytes
        with self._changed:
            full = self._pending and sum(self._pending.values()) + size > self._max_pending_bytes
            if key in self._pending:
                return True
            if self._closed or full or size > self._max_bytes:
                self._count(drops=1)
                return False
            self._pending[key] = size
        try:
            record = Record(header, *contents())
        except BaseException:
            with self._changed:
                del self._pending[key]
            raise
        with self._changed:
            self._queue.append(record)
            self._changed.notify_all()
        return True

    def load(self, key: bytes, above: int) -> list[Record] | None:
        """Return what makes up the checkpoint: records whose rows reach beyond token ``above``, shallowest first.

        Only the last one has its state. All are checked before any is returned; if one is damaged, it and all that
        build on it are removed and the result is None.
        """
        self.touch(key)  # before reading, so that the writer does not remove it meanwhile
        with self._changed:
            chain = [header for header in self._chain(key) if header.position > above]
        records = []
        for header in reversed(chain):
            try:
                record = read_record(self._path(header.key), with_state=header.key == key)
            except (OSError, DamagedRecordError) as error:
                self._remove_damaged(header.key, error)
                return None
            if record.header != header:
                self._remove_damaged(header.key, "the file is not the one that was written")
                return None
            records.append(record)
        with self._changed:
            self._count(hits=1)
        return records or None

    def touch(self, key: bytes) -> None:
        """Note that the checkpoint was used, in memory or from its file; those it builds on are used with it."""
        with self._changed:
            if key in self._index:
                self._touch_chain(key)
                with contextlib.suppress(OSError):
                    os.utime(self._path(key))

    def discard(self, key: bytes, why: str) -> None:
        """Remove a checkpoint that turned out not to be usable, and all that build on it."""
        self._remove_damaged(key, why)

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything queued is written or dropped; False if that takes longer."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._pending, timeout_s)

    def close(self, timeout_s: float = 30.0) -> None:
        """Write what is queued, for at most ``timeout_s`` seconds, and give the folder up; may be called twice."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._writer.join(timeout_s)
        if not self._lock.closed and not self._writer.is_alive():
            self._lock.close()

    def _write_queued(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._closed)
                if not self._queue:
                    return
                record = self._queue.popleft()
            written = self._try_write(record)
            with self._changed:
                del self._pending[record.header.key]
                self._count(**{"writes" if written else "drops": 1})
                self._changed.notify_all()

    def _try_write(self, record: Record) -> bool:
        header = record.header
        try:
            with self._changed:
                if not self._make_room(header):
                    return False
            write_record(self._path(header.key), record)
        except Exception as error:  # the thread must live on: a lost checkpoint costs time only
            _log.warning("a checkpoint was not written to %s: %s", self._folder, error)
            return False
        with self._changed:
            if header.parent is not None and header.parent not in self._index:  # found damaged in the meantime
                self._unlink(header.key)
                return False
            self._insert(header)
            self._touch_chain(header.key)
        return True

    def _make_room(self, header: RecordHeader) -> bool:
        """Remove the oldest files until ``header``'s fits; False if it cannot or what it builds on is not there."""
        if header.parent is not None and header.parent not in self._index:
            return False
        needed = {ancestor.key for ancestor in self._chain(header.parent)}
        if header.parent is not None:
            self._touch_chain(header.parent)
        while self._index and self._num_bytes + header.file_bytes > self._max_bytes:
            oldest = next(iter(self._index))
            if oldest in needed:
                return False
            self._remove(oldest)
            self._count(evictions=1)
        return True

    def _chain(self, key: bytes | None) -> list[RecordHeader]:
        """Return the headers from ``key`` to the root."""
        chain = []
        while key is not None and (header := self._index.get(key)):
            chain.append(header)
            key = header.parent
        return chain

    def _touch_chain(self, key: bytes) -> None:
        for header in self._chain(key):  # deepest first, so that parents end up younger
            self._index.move_to_end(header.key)

    def _scan(self) -> None:
        found: dict[bytes, tuple[float, RecordHeader]] = {}
        for path in sorted(self._folder.iterdir()):
            if path.suffix == TEMPORARY and _is_name(path.stem):
                path.unlink(missing_ok=True)  # a process was killed while it wrote this
            elif path.suffix == _SUFFIX and _is_name(path.stem):
                try:
                    header = read_header(path)
                    if header.fingerprint != self._fingerprint or header.key.hex() != path.stem:
                        raise DamagedRecordError("the file belongs to another model or version")
                    found[header.key] = path.stat().st_mtime, header
                except (OSError, DamagedRecordError) as error:
                    self._remove_damaged(bytes.fromhex(path.stem), error)
        self._adopt(found)
        while self._index and self._num_bytes > self._max_bytes:
            self._remove(next(iter(self._index)))
            self._count(evictions=1)

    def _adopt(self, found: dict[bytes, tuple[float, RecordHeader]]) -> None:
        """Index the files whose parents are there, in the order of their last use."""
        whole: dict[bytes, float] = {}
        by_depth = sorted(found.values(), key=lambda item: item[1].position)
        for used, header in by_depth:
            parent = found[header.parent][1] if header.parent in whole else None
            if header.parent is None or (parent and parent.position == header.parent_position):
                whole[header.key] = used
            else:
                self._remove_damaged(header.key, "what it builds on is gone")
        for _, header in reversed(by_depth):
            if header.key in whole and header.parent is not None:
                whole[header.parent] = max(whole[header.parent], whole[header.key])
        for key in sorted(whole, key=lambda key: (whole[key], -found[key][1].position)):
            self._insert(found[key][1])

    def _remove_damaged(self, key: bytes, why: object) -> None:
        with self._changed:
            gone = {key}
            for header in sorted(self._index.values(), key=lambda header: header.position):
                if header.parent in gone:
                    gone.add(header.key)
            for each in gone:
                self._remove(each)
            self._count(damaged=len(gone))
        _log.warning("%s is removed, with %d that build on it: %s", self._path(key).name, len(gone) - 1, why)

    def _insert(self, header: RecordHeader) -> None:
        self._index[header.key] = header
        self._num_bytes += header.file_bytes

    def _remove(self, key: bytes) -> None:
        if header := self._index.pop(key, None):
            self._num_bytes -= header.file_bytes
        self._unlink(key)

    def _unlink(self, key: bytes) -> None:
        with contextlib.suppress(OSError):
            self._path(key).unlink(missing_ok=True)

    def _path(self, key: bytes) -> Path:
        return self._folder / f"{key.hex()}{_SUFFIX}"

    def _count(self, **more: int) -> None:
        self._counts = replace(self._counts, **{name: getattr(self._counts, name) + n for name, n in more.items()})


def _is_name(stem: str) -> bool:
    return len(stem) == 32 and all(digit in "0123456789abcdef" for digit in stem)


def _lock_folder(folder: Path) -> TextIO:
    """Create the folder and take its lock, which the operating system gives back however the process ends."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / _LOCK).open("a")
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be used: {error}", hint="choose another folder") from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        raise ConfigError(
            f"{folder}: another process keeps its prefix cache there ({error})",
            hint="give each process a folder of its own",
        ) from None
    return file

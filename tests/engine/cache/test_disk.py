"""Checkpoints in files: restarts, damage, strangers, full disks, crashes and a second process cost time only."""

from __future__ import annotations

import errno
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from openk3.engine.cache import disk as disk_module
from openk3.engine.cache.disk import DiskTier, open_disk_tier
from openk3.engine.cache.prefix import PrefixCache
from openk3.engine.cache.record import DamagedRecordError, Record, RecordHeader, read_header, read_record, write_record
from openk3.errors import ConfigError
from tests.engine.cache.simulation import REPOSITORY, Bench, prompt


def restarted(bench: Bench, folder: Path, **other: int) -> Bench:
    assert bench.disk is not None
    bench.disk.close()
    return Bench(folder=folder, **other)  # type: ignore[arg-type]


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.prefix"), key=lambda path: read_header(path).position)


def conversation(folder: Path) -> Bench:
    """Three checkpoints that build on each other, at 32, 80 and 144."""
    bench = Bench(folder=folder)
    bench.run(prompt(150), at=[32, 80, 144])
    assert bench.disk is not None and bench.disk.flush(20)
    return bench


@pytest.mark.parametrize("page_size", [5, 16, 24, 64])
def test_a_restart_resumes_where_the_last_process_was(tmp_path: Path, page_size: int) -> None:
    bench = restarted(conversation(tmp_path), tmp_path, page_size=page_size)
    assert bench.run(prompt(150), at=[0]) == 144
    assert bench.run(prompt(100), at=[0]) == 80
    metrics = bench.cache.metrics
    assert metrics.disk.hits == 2 and metrics.disk.files == 3 and metrics.disk.damaged == 0
    assert metrics.hit_tokens == 224


def test_a_file_holds_only_what_its_parent_does_not(tmp_path: Path) -> None:
    conversation(tmp_path)
    headers = [read_header(path) for path in files(tmp_path)]
    assert [(h.parent_position, h.position) for h in headers] == [(0, 32), (32, 80), (80, 144)]
    assert [path.stat().st_size for path in files(tmp_path)] == [h.file_bytes for h in headers]


def test_pages_of_the_parent_in_memory_are_shared(tmp_path: Path) -> None:
    bench = restarted(conversation(tmp_path), tmp_path, page_size=24)
    bench.run(prompt(81), at=[0])
    bench.run(prompt(150), at=[0])
    shallow, deep = sorted(bench.cache.checkpoints, key=lambda c: c.position)
    assert (shallow.position, deep.position) == (80, 144)
    assert deep.pages[:3] == shallow.pages[:3] and deep.pages[3] != shallow.pages[3]


def test_evicted_checkpoints_come_back(tmp_path: Path) -> None:
    bench = conversation(tmp_path)
    assert bench.cache.make_room(64)
    assert bench.run(prompt(150), at=[0]) == 144


def test_a_file_is_not_read_when_there_is_no_room_for_it(tmp_path: Path) -> None:
    bench = conversation(tmp_path)
    assert bench.cache.make_room(64)
    bench.pool.allocate(60)
    match = bench.cache.match(bench.chain(prompt(150)).keys, 149)
    assert match.matched_tokens == 144 and match.resumed_tokens == 32  # 1 block of state, 2 pages
    assert bench.cache.metrics.disk.hits == 1 and bench.cache.metrics.disk.damaged == 0


damages: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "cut in the header": lambda data: data[:50],
    "cut in the contents": lambda data: data[:-100],
    "longer": lambda data: data + b"x",
    "first byte": lambda data: b"\0" + data[1:],
    "header length": lambda data: data[:8] + b"\xff\xff\xff\xff" + data[12:],
    "header": lambda data: data.replace(b'"position": 80', b'"position": 96', 1),
    "state": lambda data: data[:-4000] + bytes([data[-4000] ^ 1]) + data[-3999:] if len(data) > 4000 else data[:-1],
    "last bit": lambda data: data[:-1] + bytes([data[-1] ^ 1]),
    "latents": lambda data: data[:-40] + bytes([data[-40] ^ 128]) + data[-39:],
}


@pytest.mark.parametrize("damage", damages)
@pytest.mark.parametrize("running", [False, True])
def test_damage_is_found_counted_and_costs_what_builds_on_it(tmp_path: Path, damage: str, running: bool) -> None:
    bench = conversation(tmp_path)
    middle = files(tmp_path)[1]
    middle.write_bytes(damages[damage](middle.read_bytes()))
    if running:
        assert bench.cache.make_room(64)
    else:
        bench = restarted(bench, tmp_path)
    assert bench.run(prompt(150), at=[0]) == 32
    metrics = bench.cache.metrics
    assert metrics.disk.damaged == 2 and metrics.disk.files == 1
    assert len(list(tmp_path.glob("*.prefix"))) == 1
    bench.run(prompt(150))
    assert bench.disk is not None and bench.disk.flush(20)
    assert restarted(bench, tmp_path).run(prompt(150), at=[0]) == 144


@given(data=st.data())
def test_any_flipped_bit_is_found(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = tmp_path_factory.mktemp("one") / ("ab" * 16 + ".prefix")
    header = RecordHeader("model", b"\xab" * 16, 32, b"\xcd" * 16, 16, 40, 8)
    write_record(path, Record(header, torch.arange(40, dtype=torch.uint8), torch.ones(16, 8, dtype=torch.uint8)))
    whole = bytearray(path.read_bytes())
    bit = data.draw(st.integers(0, len(whole) * 8 - 1))
    whole[bit // 8] ^= 1 << bit % 8
    path.write_bytes(whole)
    with pytest.raises(DamagedRecordError):
        read_record(path)


def test_contents_of_two_files_cannot_be_mixed(tmp_path: Path) -> None:
    """A state of one boundary with latents of another is an error, not a wrong answer."""
    paths = []
    for name, fill in (("ab", 1), ("cd", 2)):
        paths.append(tmp_path / (name * 16 + ".prefix"))
        header = RecordHeader("model", bytes.fromhex(name * 16), 16, None, 0, 64, 8)
        state, rows = torch.full((64,), fill, dtype=torch.uint8), torch.full((16, 8), fill, dtype=torch.uint8)
        write_record(paths[-1], Record(header, state, rows))
    one, two = (path.read_bytes() for path in paths)
    paths[0].write_bytes(one[: -16 * 8 - 16] + two[-16 * 8 - 16 :])
    assert read_header(paths[0]).position == 16
    with pytest.raises(DamagedRecordError, match="contents"):
        read_record(paths[0])


def test_files_of_another_model_are_not_used(tmp_path: Path) -> None:
    conversation(tmp_path).disk.close()  # type: ignore[union-attr]
    other = DiskTier(tmp_path, "another model", 1 << 20)
    assert other.metrics.damaged == 3 and other.metrics.files == 0
    other.close()


def test_a_file_under_another_name_is_not_used(tmp_path: Path) -> None:
    bench = conversation(tmp_path)
    bench.disk.close()  # type: ignore[union-attr]
    files(tmp_path)[0].rename(tmp_path / ("0" * 32 + ".prefix"))
    assert DiskTier(tmp_path, "model", 1 << 20).metrics.damaged == 3


def test_files_of_other_sizes_are_not_used(tmp_path: Path) -> None:
    bench = restarted(conversation(tmp_path), tmp_path, state_bytes=701)
    assert bench.run(prompt(150), at=[0]) == 0
    assert bench.cache.metrics.disk.files == 0 and bench.cache.metrics.disk.damaged == 3


def test_what_is_not_ours_is_left_alone(tmp_path: Path) -> None:
    for name in ("notes.txt", "notes.prefix", "notes.tmp", "AB" * 16 + ".prefix"):
        (tmp_path / name).write_text("mine")
    (tmp_path / ("ab" * 16 + ".tmp")).write_text("left by a process that was killed")
    DiskTier(tmp_path, "model", 1 << 20).close()
    assert {path.name for path in tmp_path.glob("[!.]*")} == {
        "notes.txt", "notes.prefix", "notes.tmp", "AB" * 16 + ".prefix"
    }  # fmt: skip


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_full_disk_is_counted_and_serving_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    bench = Bench(folder=tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, call, full)
        bench.run(prompt(100))
        assert bench.disk is not None and bench.disk.flush(20)
    assert (bench.disk.metrics.drops, bench.disk.metrics.writes) == (1, 0)
    assert not list(tmp_path.glob("*.prefix")) and not list(tmp_path.glob("*.tmp"))
    assert "No space left" in caplog.text
    assert bench.run(prompt(100), at=[0]) == 96
    bench.run(prompt(100, seed=1))
    assert bench.disk.flush(20) and bench.disk.metrics.writes == 1


def test_a_queue_that_is_full_drops_and_the_next_one_covers_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()
    bench = Bench()
    tier = DiskTier(tmp_path, "model", 1 << 20, max_pending_bytes=4000)
    bench.cache = PrefixCache(16, 16, bench.pool, bench.arena, 700, latents=bench.latents, disk=tier)

    def slow(path: Path, record: Record) -> None:
        assert gate.wait(20)
        write_record(path, record)

    monkeypatch.setattr(disk_module, "write_record", slow)
    bench.run(prompt(60), at=[32])
    bench.run(prompt(150), at=[80, 144])  # the first of the two still fits in the queue
    assert tier.metrics.pending == 1 and tier.metrics.drops == 2
    gate.set()
    assert tier.flush(20) and tier.metrics.writes == 1
    bench.run([*prompt(160), 1])
    assert tier.flush(20)
    assert [(h.parent_position, h.position) for h in map(read_header, files(tmp_path))] == [(0, 32), (32, 160)]
    tier.close()


def test_the_least_recently_used_file_goes_and_never_one_that_others_build_on(tmp_path: Path) -> None:
    bench = Bench(folder=tmp_path, num_blocks=400, max_bytes=14_500)
    assert bench.disk is not None
    for length, seed in ((40, 1), (40, 2), (90, 1)):
        bench.run(prompt(length, seed=seed))
        assert bench.disk.flush(20)
    bench.run(prompt(90, seed=1), at=[0])
    for seed in range(3, 9):
        bench.run(prompt(40, seed=seed))
        assert bench.disk.flush(20)
        assert sum(path.stat().st_size for path in files(tmp_path)) == bench.disk.metrics.bytes <= 14_500
        bench.run(prompt(90, seed=1), at=[0])
    assert bench.disk.metrics.evictions > 0
    bench = restarted(bench, tmp_path)
    assert bench.disk is not None and bench.disk.metrics.damaged == 0
    assert bench.run(prompt(90, seed=1), at=[0]) == 80
    assert bench.run(prompt(40, seed=2), at=[0]) == 0
    assert bench.run(prompt(40, seed=8), at=[0]) == 32


def test_a_smaller_limit_is_kept_at_once(tmp_path: Path) -> None:
    bench = conversation(tmp_path)
    total = bench.cache.metrics.disk.bytes
    bench = restarted(bench, tmp_path, max_bytes=total - 1)
    assert bench.cache.metrics.disk.files == 2
    assert bench.run(prompt(150), at=[0]) == 80


def test_a_checkpoint_larger_than_the_limit_is_dropped(tmp_path: Path) -> None:
    bench = Bench(folder=tmp_path, max_bytes=1000)
    bench.run(prompt(100))
    assert bench.cache.metrics.disk.drops == 1 and not files(tmp_path)


def test_a_second_user_of_the_folder_says_so_and_does_without(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = DiskTier(tmp_path, "model", 1 << 20)
    script = "import sys, pathlib; from openk3.engine.cache.disk import open_disk_tier as o; "
    script += "sys.exit(0 if o(pathlib.Path(sys.argv[1]), 'other', 1) is None else 1)"
    second = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], env=_environment(), capture_output=True, text=True, timeout=60
    )
    assert second.returncode == 0, second.stderr
    assert "another process keeps its prefix cache there" in second.stderr
    with caplog.at_level(logging.WARNING):
        assert open_disk_tier(tmp_path, "model", 1 << 20) is None
    assert "prefix cache on disk is off" in caplog.text
    first.close()
    third = open_disk_tier(tmp_path, "model", 1 << 20)
    assert third is not None
    third.close()
    third.close()


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be used"):
        DiskTier(tmp_path / "file" / "folder", "model", 1)
    assert open_disk_tier(tmp_path / "file", "model", 1) is None


def test_a_tier_needs_to_know_what_a_page_is(tmp_path: Path) -> None:
    bench = Bench()
    tier = DiskTier(tmp_path, "model", 1)
    with pytest.raises(ConfigError, match="latents"):
        PrefixCache(16, 16, bench.pool, bench.arena, 700, disk=tier)
    tier.close()


def test_saving_after_closing_is_a_drop(tmp_path: Path) -> None:
    bench = conversation(tmp_path)
    assert bench.disk is not None
    bench.disk.close()
    bench.run(prompt(100, seed=1))
    assert bench.disk.metrics.drops == 1 and bench.disk.metrics.pending == 0


_ENDLESS = """
import sys, pathlib
from tests.engine.cache.simulation import Bench, prompt
bench = Bench(num_blocks=4000, folder=pathlib.Path(sys.argv[1]), max_bytes=300_000, state_bytes=20_000)
print("ready", flush=True)
for seed in range(10**6):
    bench.run(prompt(120 + seed % 3 * 16, seed=seed // 3), at=[32, 64, 96])
"""


def test_killed_at_any_time_the_folder_stays_usable(tmp_path: Path) -> None:
    for delay in (0.0, 0.05, 0.11, 0.23):
        process = subprocess.Popen(
            [sys.executable, "-c", _ENDLESS, str(tmp_path)], env=_environment(), stdout=subprocess.PIPE, cwd=REPOSITORY
        )
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)
        process.wait(20)
        process.stdout.close()
        tier = DiskTier(tmp_path, "model", 300_000)
        assert tier.metrics.damaged == 0
        assert tier.metrics.bytes <= 300_000 and not list(tmp_path.glob("*.tmp"))
        for path in files(tmp_path):
            assert tier.load(bytes.fromhex(path.stem), 0) is not None
        tier.close()
    assert files(tmp_path)


def _environment() -> dict[str, str]:
    path = os.pathsep.join([str(REPOSITORY / "src"), str(REPOSITORY), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path}

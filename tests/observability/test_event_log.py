from __future__ import annotations

import errno
import tracemalloc
from pathlib import Path

import pytest

from rollart.events import Alarm, EventLog, read_events


def _log(folder: Path, process: str, wall_time: float, *messages: tuple[float, str]) -> None:
    clock = [100.0]
    log = EventLog(folder, "run", process, clock[0], wall_time, lambda: clock[0])
    for t, message in messages:
        clock[0] = 100.0 + t
        log.emit(Alarm(process, message))
    log.close()


def _messages(folder: Path) -> list[tuple[float, str]]:
    return [(envelope.t, envelope.e.message) for envelope in read_events(folder) if isinstance(envelope.e, Alarm)]


def test_shards_merge_by_time_then_process_and_sequence(tmp_path: Path) -> None:
    _log(tmp_path, "b", 1000.0, (1.0, "b1"), (1.0, "b2"), (3.0, "b3"))
    _log(tmp_path, "a", 1000.0, (1.0, "a1"), (2.0, "a2"))

    assert _messages(tmp_path) == [(1.0, "a1"), (1.0, "b1"), (1.0, "b2"), (2.0, "a2"), (3.0, "b3")]


def test_processes_that_start_later_are_aligned_by_wall_time(tmp_path: Path) -> None:
    _log(tmp_path, "a", 1000.0, (0.0, "a1"), (9.0, "a2"))
    _log(tmp_path, "b", 1005.0, (0.0, "b1"))

    assert _messages(tmp_path) == [(0.0, "a1"), (5.0, "b1"), (9.0, "a2")]


@pytest.mark.parametrize("torn", [b'{"n":7,"t":9.0,"e":{"ty', b'{"schema":1,"ru'])
def test_what_a_crash_tore_is_left_out_and_the_resumed_run_is_read(tmp_path: Path, torn: bytes) -> None:
    _log(tmp_path, "a", 1000.0, (1.0, "before"))
    with (tmp_path / "a.jsonl").open("ab") as shard:
        shard.write(torn)
    assert _messages(tmp_path) == [(1.0, "before")]

    _log(tmp_path, "a", 1060.0, (1.0, "after"))
    assert _messages(tmp_path) == [(1.0, "before"), (61.0, "after")]


def test_damage_in_the_middle_is_not_skipped(tmp_path: Path) -> None:
    _log(tmp_path, "a", 1000.0, (1.0, "first"), (2.0, "second"))
    file = tmp_path / "a.jsonl"
    file.write_bytes(file.read_bytes().replace(b'"first"', b"first"))

    with pytest.raises(ValueError, match=r"a\.jsonl has a damaged record"):
        list(read_events(tmp_path))


def test_a_folder_without_a_log(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="is this a run folder"):
        list(read_events(tmp_path))


def test_a_full_disk_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").symlink_to("/dev/full")
    log = EventLog(tmp_path, "run", "a", 0.0, 0.0, lambda: 0.0)
    log.emit(Alarm("a", "x"))

    with pytest.raises(OSError, match=r"No space left on device: .*a\.jsonl") as caught:
        log.flush()
    assert caught.value.errno == errno.ENOSPC
    with pytest.raises(OSError, match=r"a\.jsonl"):
        log.close()


def test_a_long_log_is_read_in_little_memory(tmp_path: Path) -> None:
    messages = [(float(number), "x" * 1000) for number in range(4000)]
    for process in ("a", "b"):
        _log(tmp_path, process, 1000.0, *messages)

    tracemalloc.start()
    count = sum(1 for _ in read_events(tmp_path))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert count == 8000
    assert peak < 1_000_000  # of the 8 MB in the files

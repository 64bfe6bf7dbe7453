"""The shared-memory store between real processes: exact bytes, damage detected, nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from rollart.codec import decode, encode
from rollart.data_plane.weights.layout import checksum_of
from rollart.data_plane.weights.shared_memory import (
    SHARED_MEMORY,
    SharedMemoryReader,
    SharedMemoryWriter,
    store_folder,
    sweep,
    sweep_dead,
)
from rollart.data_plane.weights.store import Manifest, NamedBytes, WeightStoreError, views

MakeTensors = Callable[[int], list[NamedBytes]]
StartProcess = Callable[..., "subprocess.Popen[str]"]
BUCKET = 1000

WRITE = """
import sys, numpy as np
from pathlib import Path
from rollart.codec import encode
from rollart.data_plane.weights.shared_memory import SharedMemoryWriter
from rollart.data_plane.weights.store import NamedBytes
run, root, target = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
writer = SharedMemoryWriter(run, 1000, root, root)
data = np.arange(5000, dtype=np.int32)
manifest = writer.publish(7, [NamedBytes("w", "int32", (5000,), data.view(np.uint8))])
target.write_bytes(encode(manifest))
print("published", flush=True)
sys.stdin.readline()
writer.close()
"""

READ = """
import sys
from pathlib import Path
from rollart.codec import decode
from rollart.data_plane.weights.layout import checksum_of_bytes
from rollart.data_plane.weights.shared_memory import SharedMemoryReader
from rollart.data_plane.weights.store import Manifest
run, root, source = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
reader = SharedMemoryReader(run, root, root)
print(checksum_of_bytes(reader.pull(decode(source.read_bytes(), Manifest)).data), "torch" in sys.modules)
"""


@pytest.fixture
def run_id(request: pytest.FixtureRequest) -> Iterator[str]:
    name = f"test-{os.getpid()}-{abs(hash(request.node.nodeid)):x}"
    yield name
    sweep(name)


def file_of(run_id: str, manifest: Manifest) -> Path:
    return store_folder(SHARED_MEMORY, run_id) / manifest.buckets[0].key.rpartition("/")[0]


@pytest.fixture
def writer(run_id: str, tmp_path: Path) -> Iterator[SharedMemoryWriter]:
    writer = SharedMemoryWriter(run_id, BUCKET, tmp_path)
    yield writer
    writer.close()


def test_round_trip_in_shared_memory(
    writer: SharedMemoryWriter, run_id: str, tmp_path: Path, make_tensors: MakeTensors
) -> None:
    tensors = make_tensors(1)
    manifest = writer.publish(0, tensors)
    flat = SharedMemoryReader(run_id, tmp_path).pull(manifest)
    for (entry, data), tensor in zip(views(manifest, flat), tensors, strict=True):
        assert (entry.name, entry.size) == (tensor.name, len(tensor.data))
        assert np.array_equal(data, tensor.data)
    assert manifest.checksum == checksum_of(tensors, BUCKET)
    assert len(manifest.buckets) == -(-manifest.size // BUCKET)
    assert all(run_id in bucket.key for bucket in manifest.buckets)
    assert file_of(run_id, manifest).exists()
    flat[:] = 0
    assert SharedMemoryReader(run_id, tmp_path).pull(manifest).any(), "what a reader writes stays its own"


def test_processes_share_versions_and_close_deletes_all(
    run_id: str, tmp_path: Path, start_process: StartProcess
) -> None:
    source = tmp_path / "manifest"
    trainer = start_process(WRITE, run_id, SHARED_MEMORY, source)
    assert trainer.stdout is not None
    assert trainer.stdout.readline() == "published\n"
    engines = [start_process(READ, run_id, SHARED_MEMORY, source) for _ in range(2)]
    answers = [engine.communicate(timeout=60) for engine in engines]
    own = SharedMemoryReader(run_id, tmp_path).pull(decode(source.read_bytes(), Manifest))
    assert np.array_equal(own[:20000].view(np.int32), np.arange(5000))
    assert len({out for out, _ in answers}) == 1
    assert answers[0][0].endswith("False\n"), answers
    assert sweep(run_id) == 0, "a living run must not be swept"
    trainer.communicate("\n", timeout=60)
    assert trainer.returncode == 0
    assert not store_folder(SHARED_MEMORY, run_id).exists()


def test_sweep_removes_what_a_killed_run_left(run_id: str, tmp_path: Path, start_process: StartProcess) -> None:
    trainer = start_process(WRITE, run_id, SHARED_MEMORY, tmp_path / "manifest")
    assert trainer.stdout is not None
    trainer.stdout.readline()
    trainer.send_signal(signal.SIGKILL)
    trainer.wait(timeout=60)
    assert store_folder(SHARED_MEMORY, run_id).exists()
    assert sweep(run_id) >= 20000
    assert not store_folder(SHARED_MEMORY, run_id).exists()
    assert sweep(run_id) == 0


def test_sweep_dead_spares_living_runs(tmp_path: Path, make_tensors: MakeTensors) -> None:
    dead, alive = (SharedMemoryWriter(name, BUCKET, tmp_path, tmp_path) for name in ("dead", "alive"))
    dead.publish(0, make_tensors(1))
    manifest = alive.publish(0, make_tensors(1))
    for lock in dead._locks.values():  # what the kernel does when a process dies
        lock.close()
    assert sweep_dead(tmp_path) > 0
    assert not store_folder(tmp_path, "dead").exists()
    assert len(SharedMemoryReader("alive", tmp_path, tmp_path).pull(manifest)) == manifest.size
    alive.close()


def test_a_new_writer_removes_what_dead_runs_left(tmp_path: Path, make_tensors: MakeTensors) -> None:
    dead, new = (SharedMemoryWriter(name, BUCKET, tmp_path, tmp_path) for name in ("dead", "new"))
    dead.publish(0, make_tensors(1))
    for lock in dead._locks.values():  # what the kernel does when a process dies
        lock.close()
    new.publish(0, make_tensors(1))
    assert not store_folder(tmp_path, "dead").exists()
    new.close()


@pytest.mark.parametrize("damage", ["flip", "truncate", "delete"])
def test_a_damaged_bucket_is_never_used(
    writer: SharedMemoryWriter, run_id: str, tmp_path: Path, make_tensors: MakeTensors, damage: str
) -> None:
    manifest = writer.publish(4, make_tensors(1))
    path = file_of(run_id, manifest)
    data = bytearray(path.read_bytes())
    if damage == "flip":
        data[manifest.buckets[2].offset + 17] ^= 4
        path.write_bytes(data)
    elif damage == "truncate":
        path.write_bytes(data[:-1])
    else:
        path.unlink()
    expected = {
        "flip": r"version 4, bucket 2 of .* its checksum is",
        "truncate": r"version 4 .* has 3967 bytes, the manifest says 3968",
        "delete": r"version 4 .* is gone",
    }[damage]
    with pytest.raises(WeightStoreError, match=expected):
        SharedMemoryReader(run_id, tmp_path).pull(manifest)


def test_a_damaged_manifest_is_refused(
    writer: SharedMemoryWriter, run_id: str, tmp_path: Path, make_tensors: MakeTensors
) -> None:
    manifest = writer.publish(4, make_tensors(1))
    shorter = Manifest(4, manifest.tensors, manifest.buckets[:-1], manifest.size, manifest.checksum)
    swapped = Manifest(4, manifest.tensors, manifest.buckets[::-1], manifest.size, manifest.checksum)
    renamed = Manifest(4, manifest.tensors, manifest.buckets, manifest.size, "0" * 16)
    for bad in (shorter, swapped, renamed):
        with pytest.raises(WeightStoreError, match="manifest does not"):
            SharedMemoryReader(run_id, tmp_path).pull(bad)


def test_retention_deletes_old_versions_only(
    writer: SharedMemoryWriter, run_id: str, tmp_path: Path, make_tensors: MakeTensors
) -> None:
    manifests = [writer.publish(version, make_tensors(version)) for version in range(3)]
    writer.retain(2)
    reader = SharedMemoryReader(run_id, tmp_path)
    assert len(reader.pull(manifests[2])) == manifests[2].size
    for old in manifests[:2]:
        with pytest.raises(WeightStoreError, match="is gone"):
            reader.pull(old)


def test_keys_are_never_reused(
    writer: SharedMemoryWriter, run_id: str, tmp_path: Path, make_tensors: MakeTensors
) -> None:
    first = writer.publish(0, make_tensors(0))
    with pytest.raises(ValueError, match="published before"):
        writer.publish(0, make_tensors(0))
    restarted = SharedMemoryWriter(run_id, BUCKET, tmp_path)
    second = restarted.publish(0, make_tensors(0))
    assert second.checksum == first.checksum
    assert not {b.key for b in first.buckets} & {b.key for b in second.buckets}
    restarted.close()
    assert len(SharedMemoryReader(run_id, tmp_path).pull(first)) == first.size, "the other writer's files stay"


def test_versions_only_rise_also_when_their_files_are_gone(
    writer: SharedMemoryWriter, make_tensors: MakeTensors
) -> None:
    writer.publish(2, make_tensors(2))
    writer.retain(3)
    for taken in (0, 1, 2):
        with pytest.raises(ValueError, match="published before"):
            writer.publish(taken, make_tensors(taken))


def test_small_or_missing_shared_memory_falls_back_to_the_run_folder(
    run_id: str, tmp_path: Path, make_tensors: MakeTensors, caplog: pytest.LogCaptureFixture
) -> None:
    missing = tmp_path / "no-shm"
    writer = SharedMemoryWriter(run_id, BUCKET, tmp_path / "run", missing)
    manifest = writer.publish(0, make_tensors(0))
    assert "over the disk" in caplog.text
    assert len(SharedMemoryReader(run_id, tmp_path / "run", missing).pull(manifest)) == manifest.size
    writer.close()
    assert list((tmp_path / "run").iterdir()) == []


def test_a_store_without_room_says_so_before_writing(
    run_id: str, tmp_path: Path, make_tensors: MakeTensors, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Usage:
        free = 1000

    monkeypatch.setattr("shutil.disk_usage", lambda path: Usage)
    writer = SharedMemoryWriter(run_id, BUCKET, tmp_path)
    with pytest.raises(WeightStoreError, match=r"version 3 needs .*--shm-size"):
        writer.publish(3, make_tensors(0))
    assert not store_folder(SHARED_MEMORY, run_id).exists()


FILL = """
import sys, resource
import numpy as np
from pathlib import Path
from rollart.data_plane.weights.shared_memory import SharedMemoryWriter
from rollart.data_plane.weights.store import NamedBytes, WeightStoreError
import signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1500, 1500))  # writes beyond 1500 bytes of a file fail
root = Path(sys.argv[1])
writer = SharedMemoryWriter("full", 4000, root, root)
try:
    writer.publish(3, [NamedBytes("w", "uint8", (9000,), np.zeros(9000, np.uint8))])
except WeightStoreError as error:
    print(error)
print(sorted(path.name for path in (root / "rollart-full").iterdir()))
"""


def test_a_write_that_fails_half_way_leaves_nothing(tmp_path: Path, start_process: StartProcess) -> None:
    out, err = start_process(FILL, tmp_path).communicate(timeout=60)
    message, names = out.splitlines()
    assert message.startswith("version 3 could not be written"), err
    assert names == "['lock']"


def test_a_closed_store_refuses(writer: SharedMemoryWriter, make_tensors: MakeTensors) -> None:
    writer.close()
    writer.close()
    with pytest.raises(WeightStoreError, match="closed"):
        writer.publish(0, make_tensors(0))


def test_run_ids_are_file_names(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="run id"):
        SharedMemoryWriter("../x", BUCKET, tmp_path)


def test_manifests_cross_borders(writer: SharedMemoryWriter, make_tensors: MakeTensors) -> None:
    manifest = writer.publish(0, make_tensors(0))
    assert decode(encode(manifest), Manifest) == manifest

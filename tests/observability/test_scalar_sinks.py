from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from rollart.events import read_events
from rollart.observability.scalar_sinks import MissingPackage, TensorBoardSink, WandbSink


@pytest.mark.skipif(not importlib.util.find_spec("tensorboard"), reason="needs the optional package tensorboard")
def test_tensorboard_gets_every_iteration(run_folder: Path, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    clock = [0.0]
    sink = TensorBoardSink(tmp_path / "board", now=lambda: clock[0])
    for envelope in read_events(run_folder / "events"):
        clock[0] = envelope.t
        sink.emit(envelope.e)
    sink.close()

    (file,) = (tmp_path / "board").iterdir()
    scalars = {
        (value.tag, record.step): value.simple_value or value.tensor.float_val[0]
        for record in EventFileLoader(str(file)).Load()
        for value in record.summary.value
    }
    assert [scalars["success/math", step] for step in (1, 2, 3)] == [1.0, 1.0, 1.0]
    assert [scalars["time/step", step] for step in (1, 2, 3)] == [10.0, 10.0, 10.0]
    assert scalars["held_out_success/lake", 3] == pytest.approx(0.65)
    assert scalars["random_success/lake", 0] == pytest.approx(0.1)


def test_a_missing_package_is_named_with_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("tensorboard.compat.proto.event_pb2", "wandb"):
        monkeypatch.setitem(sys.modules, module, None)

    with pytest.raises(MissingPackage, match=r"pip install 'rollart\[tensorboard\]'"):
        TensorBoardSink(tmp_path)
    with pytest.raises(MissingPackage, match=r"pip install 'rollart\[wandb\]'"):
        WandbSink("project", "run", tmp_path, {})

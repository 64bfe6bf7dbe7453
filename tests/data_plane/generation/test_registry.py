"""Engines built from the configuration: found by name, loaded from a folder, sized to what there is."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import torch
from engine_client import Client, Episode

from rollart.config.config import Config
from rollart.config.engine import EngineConfig
from rollart.config.model import TinyModelConfig
from rollart.data_plane.generation.decoder import UnsupportedModel
from rollart.data_plane.generation.kv_cache import KVCache
from rollart.data_plane.generation.registry import EngineSetup, build_engine, check_engine
from rollart.data_plane.generation.torch_factory import fitting_sessions, max_context
from rollart.data_plane.generation.weight_loading import model_checksum
from rollart.data_plane.generation.worker import Generator
from rollart.data_plane.training.models import ModelError, build_tiny_model, load_model
from rollart.data_plane.weights.shared_memory import SharedMemoryReader
from rollart.types import EngineAddress, SamplingParams, TokenSpan

SHAPE = TinyModelConfig(hidden=32, layers=1, heads=2, kv_heads=1, head_dim=16, intermediate=48, max_length=64)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("model")
    build_tiny_model(SHAPE, ["up", "down", "left", "right"], seed=0, folder=folder)
    return str(folder)


def setup(model: str, context: int | None = None) -> EngineSetup:
    return EngineSetup(EngineAddress(3, 1), model, seed=0, version=7, bucket_bytes=1 << 16, context=context)


def test_an_engine_is_built_from_its_section(folder: str, tmp_path: Path) -> None:
    config = EngineConfig(max_rows=2, max_sessions=5, device="cpu")

    async def main() -> None:
        engine = build_engine(config, setup(folder), SharedMemoryReader("run", tmp_path, tmp_path))
        info = await engine.start()
        assert (info.address, info.version) == (EngineAddress(3, 1), 7)
        assert (info.max_rows, info.max_sessions, info.max_context) == (2, 5, 64)
        assert info.checksum == model_checksum(load_model(folder), 1 << 16)
        answer = await Client(engine).one(Episode(0).request(TokenSpan.of([1, 4, 5]), SamplingParams(3)))
        assert (answer.engine, len(answer.action)) == (EngineAddress(3, 1), 3)
        await engine.stop()

    asyncio.run(main())
    assert torch.get_num_threads() == 1


def test_a_missing_folder_fails_the_start(tmp_path: Path) -> None:
    async def main() -> None:
        reader = SharedMemoryReader("run", tmp_path, tmp_path)
        engine = build_engine(EngineConfig(), setup(str(tmp_path / "nowhere")), reader)
        with pytest.raises(ModelError, match="nowhere not found"):
            await engine.start()

    asyncio.run(main())


def test_unknown_engines_name_the_nearest() -> None:
    with pytest.raises(ValueError, match="did you mean 'torch'"):
        check_engine("troch")


PARROT = """\
from rollart.data_plane.generation.engine import EngineInfo, EngineStats
from rollart.types import FinishReason, GenerationResult, ResultStatus, TokenSpan, VersionRun


class Parrot:
    \"\"\"Says the last token of each prompt once more.\"\"\"

    def __init__(self, config, setup):
        self.config, self.setup, self.version, self.checksum = config, setup, setup.version, "none"
        self.waiting, self.answers = {}, []

    @property
    def has_work(self):
        return bool(self.waiting)

    def info(self):
        rows, sessions = self.config.max_rows, self.config.max_sessions
        return EngineInfo(self.setup.address, self.version, self.checksum, rows, sessions, self.setup.context)

    def stats(self):
        return EngineStats(waiting=len(self.waiting))

    def add(self, request):
        self.waiting[request.trajectory] = request

    def abort(self, trajectory): ...
    def release(self, trajectory): ...

    def step(self):
        for request in self.waiting.values():
            said = TokenSpan.of([int(request.new.ids[-1])], [0.0])
            about = (request.trajectory, request.turn, request.attempt, self.setup.address)
            run = VersionRun(self.version, 1)
            self.answers.append(GenerationResult(*about, ResultStatus.DONE, said, (run,), FinishReason.STOP))
        self.waiting.clear()
        return 0.0

    def settle(self, elapsed):
        answers, self.answers = self.answers, []
        return answers

    def check(self, manifest): ...

    def update(self, manifest, flat):
        self.version, self.checksum = manifest.version, manifest.checksum

    def in_flight(self):
        return len(self.waiting)

    def started(self):
        return ()
"""


def test_a_users_engine_is_named_by_its_import_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "birds.py").write_text(PARROT)
    monkeypatch.syspath_prepend(tmp_path)
    config = Config.model_validate({"engine": {"kind": "birds:Parrot"}, "domains": {"lake": {"env": "frozen_lake"}}})
    check_engine(config.engine.kind)

    async def main() -> None:
        worker = Generator(config.model_dump_json(), "anywhere", 3, "run", str(tmp_path))
        info = await worker.start()
        assert (info.address, info.max_context) == (EngineAddress(3), 512)
        await worker.post([Episode(0).request(TokenSpan.of([1, 4, 5]), SamplingParams(3))], [], [])
        (answer,) = await worker.results(10.0)
        assert answer.action.ids.tolist() == [5]  # type: ignore[union-attr]
        await worker.stop()

    asyncio.run(main())


def test_the_context_is_asked_for_or_the_models(folder: str) -> None:
    model = load_model(folder)
    assert max_context(EngineConfig(), model, setup(folder)) == 64
    assert max_context(EngineConfig(), model, setup(folder, context=40)) == 40
    assert max_context(EngineConfig(max_context=32), model, setup(folder, context=40)) == 32
    with pytest.raises(UnsupportedModel, match=r"engine\.max_context is 65, but model .* ends at 64"):
        max_context(EngineConfig(max_context=65), model, setup(folder))


def test_sessions_are_those_whose_cache_fits(folder: str) -> None:
    model = load_model(folder)
    one = KVCache.slot_bytes(1, 64, 1, 16, torch.float32)
    assert one == 2 * 64 * 16 * 4
    assert fitting_sessions(EngineConfig(max_sessions=512), model, 64, 10 * one) == 9
    assert fitting_sessions(EngineConfig(max_sessions=4), model, 64, 10 * one) == 4
    with pytest.raises(UnsupportedModel, match=r"lower engine\.max_context"):
        fitting_sessions(EngineConfig(), model, 64, one)

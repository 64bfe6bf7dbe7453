"""Plain synchronous training, the reference that alpha = 0 must equal bit for bit.

Batch k: play every episode at W_k, one after the other; take the gradient; load W_{k+1} into the engine.
No LLMProxy, no SampleBuffer, no scheduler, no processes, no event loop, no KV cache kept between turns. What it
shares with the system is what the result is defined by: environments, rendering, engine core and trainer,
the slot schedule, and how seeds derive from the root seed.
"""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from rollart.config.config import Config
from rollart.control_plane.mix import SlotSchedule
from rollart.data_plane.environment.registry import make_env
from rollart.data_plane.generation.registry import EngineSetup
from rollart.data_plane.generation.torch_engine import TorchEngineCore
from rollart.data_plane.generation.torch_factory import build_torch_core
from rollart.data_plane.rendering.build import build_renderer
from rollart.data_plane.rendering.renderer import Renderer
from rollart.data_plane.rendering.words import vocabulary_of
from rollart.data_plane.training.models import build_tiny_model
from rollart.data_plane.training.torch_trainer import TorchTrainer
from rollart.data_plane.weights.shared_memory import SharedMemoryReader, SharedMemoryWriter
from rollart.types import (
    HASH_START,
    EngineAddress,
    FinishReason,
    GenerationRequest,
    GenerationResult,
    Group,
    Limit,
    Purpose,
    SamplingParams,
    Score,
    Segment,
    TrainBatch,
    Trajectory,
    TrajectoryId,
    Turn,
    derive_seed,
    join,
)


class PlainRun(msgspec.Struct, frozen=True):
    """What the loop did.

    Attributes:
        batches: Batch k at position k.
        checksums: Checksum of W_k at position k, from W_0 to the last.
        weights: ``model.safetensors`` of the last version.
    """

    batches: list[TrainBatch]
    checksums: list[str]
    weights: bytes


def run(config: Config, folder: Path) -> PlainRun:
    """Train as ``config`` says, in a folder that is new or empty."""
    model, bucket = folder / "model", config.weights.bucket_bytes
    build_tiny_model(config.model.tiny, vocabulary_of(config.domains), derive_seed(config.run.seed, "model"), model)
    trainer = TorchTrainer(config, model, SharedMemoryWriter("plain", bucket, folder, root=folder))
    store = SharedMemoryReader("plain", folder, root=folder)
    engine = build_torch_core(config.engine, EngineSetup(EngineAddress(0), str(model), config.run.seed, 0, bucket))
    renderers = {name: build_renderer(model, "auto", domain) for name, domain in config.domains.items()}
    size, iterations = config.rollout.groups_per_batch, config.run.iterations
    domains = SlotSchedule(config.shares, size).upcoming(size * iterations)
    tasks: Counter[str] = Counter()
    batches: list[TrainBatch] = []
    checksums = [trainer.start(None).checksum]
    for k in range(iterations):
        groups = []
        for index in range(k * size, (k + 1) * size):
            domain = domains[index]
            groups.append(_play_group(config, engine, renderers[domain], domain, tasks[domain], index, version=k))
            tasks[domain] += 1
        batches.append(TrainBatch(k, tuple(groups)))
        trainer.train_step(batches[k])
        manifest = trainer.publish()
        engine.update(manifest, store.pull(manifest))
        checksums.append(manifest.checksum)
    trainer.save(folder / "last")
    trainer.stop()
    return PlainRun(batches, checksums, (folder / "last" / "model.safetensors").read_bytes())


def _play_group(
    config: Config, engine: TorchEngineCore, renderer: Renderer, domain: str, task: int, index: int, version: int
) -> Group:
    seed = derive_seed(config.run.seed, "train", domain, task)
    ids = [TrajectoryId(domain, task, index, member) for member in range(config.rollout.group_size)]
    members = tuple(_play(config, engine, renderer, id, seed) for id in ids)
    masked = config.domains[domain].truncated == "mask"
    withheld = tuple(place for place, member in enumerate(members) if masked and member.limit is not None)
    return Group(domain, task, index, members, version, withheld)


def _play(config: Config, engine: TorchEngineCore, renderer: Renderer, id: TrajectoryId, seed: int) -> Trajectory:
    """One episode: its whole history is computed anew for every action."""
    domain = config.domains[id.domain]
    env = make_env(domain.env, domain.args, Purpose.TRAIN, derive_seed(seed, str(id)))
    seen = env.reset(seed, id.task)
    rendered = renderer.begin(seen)
    history = join([])
    turns: list[Turn] = []
    info: dict[str, Any] = {}
    limit: Limit | None = None
    ended = False
    while not ended:
        history = join([history, rendered])
        room = domain.max_context - len(history)
        if room < 1:
            limit = Limit.CONTEXT
            break
        sampling = SamplingParams(
            min(domain.max_new_tokens, room), domain.temperature, domain.top_p, domain.top_k, renderer.stop_token_ids
        )
        result = _generate(engine, GenerationRequest(id, len(turns), 0, 0, HASH_START, history, sampling))
        history = join([history, result.action])
        said = renderer.parse(result.action)
        observation, reward, terminated, truncated, info = env.step(said)
        turns.append(Turn(rendered, result.action, result.versions, result.finish_reason, float(reward), seen, said))
        ended = terminated or truncated or len(turns) == domain.max_turns
        limit = None if terminated else Limit.ENVIRONMENT if truncated else Limit.TURNS if ended else None
        seen = observation
        rendered = renderer.observe(seen, stopped=result.finish_reason is FinishReason.STOP)
    env.close()
    engine.release(id)
    score = Score(math.fsum(turn.reward for turn in turns), info.get("success"))
    return Trajectory(id, seed, (Segment(tuple(turns)),), score, limit, info.get("metrics", {}))


def _generate(engine: TorchEngineCore, request: GenerationRequest) -> GenerationResult:
    engine.add(request)
    answers: list[GenerationResult] = []
    while engine.has_work:
        engine.step()
        answers += engine.settle(0.0)
    (answer,) = answers
    return answer

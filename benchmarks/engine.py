"""How fast the torch engine generates, as ratios measured in one run on one thread.

1. **Multi-turn trace**: action tokens a second of the engine, driven through its asyncio interface by clients that
   send a trajectory's next turn when the last one is answered, over the same of ``transformers`` ``generate``:
   at each turn the trajectories that are still alive are cut into static batches of the engine's size,
   left-padded, and prefilled again from their full history. ``generate`` samples at temperature 1 and returns
   no log-probabilities, which the engine does.
2. **Bare decode loop**: tokens a second of the engine at 32 requests of 32 prompt tokens and 64 new ones, temperature
   1, over a loop of ``model(token, past_key_values=DynamicCache)`` and an argmax on the same batch: no
   sampling, no log-probabilities, no stopping, no bookkeeping.

Trace format (``traces/multi_turn.jsonl``): one trajectory a line, as
``{"turns": [[observation tokens, action tokens], ...]}``. ``--trace-from RUN_FOLDER`` writes one from the event log
of a run with ``log.turns: true``. Token ids are drawn from a seed: the time does not depend on them. Times are
CPU seconds of the process, so other load on the machine enters little; the sides alternate, and the ratio
is of the medians.

What bounds the engine: of a decode step of 32 requests at this size (about 4.8 ms at best on the machine it was
profiled on) a third is matrix products, a fifth attention and cache writes, somewhat over a quarter the other
tensor operations, whose dispatch outweighs their arithmetic, a tenth sampling, and the rest bookkeeping. With
SmolLM2-135M nearly all is matrix products.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from transformers import DynamicCache, GenerationConfig, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from rollart.data_plane.generation.engine import Engine
from rollart.data_plane.generation.model_runner import ModelRunner
from rollart.data_plane.generation.shell import EngineShell
from rollart.data_plane.generation.torch_engine import TorchEngineCore
from rollart.data_plane.training.models import load_model
from rollart.events import TurnFinished, read_events
from rollart.types import (
    HASH_START,
    EngineAddress,
    GenerationRequest,
    SamplingParams,
    TokenSpan,
    TrajectoryId,
    rolling_hash,
)

TRACE = Path(__file__).parent / "traces" / "multi_turn.jsonl"
TRACE_TRAJECTORIES = 256
"""Trajectories in a trace written from a run."""
Trace = list[list[tuple[int, int]]]
"""(observation tokens, action tokens) of each turn of each trajectory."""

ROWS = 32
PROMPT, NEW = 32, 64
CONTEXT = 512


def small_model() -> PreTrainedModel:
    """A Qwen3 of 0.66 M parameters with random weights, float32."""
    config = Qwen3Config(
        vocab_size=512,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=CONTEXT,
        initializer_range=0.08,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    return Qwen3ForCausalLM(config).eval()


def engine(model: PreTrainedModel, sessions: int) -> Engine:
    def build() -> TorchEngineCore:
        runner = ModelRunner(model, sessions, CONTEXT)
        return TorchEngineCore(
            runner, EngineAddress(0), 0, max_rows=ROWS, prefill_chunk=ROWS * PROMPT, bucket_bytes=1 << 30
        )

    return EngineShell(build)


class Player:
    """One trajectory of the trace on the engine."""

    def __init__(self, trajectory: TrajectoryId, turns: list[tuple[int, int]], vocabulary: int) -> None:
        self.id = trajectory
        self._turns = turns
        self._vocabulary = vocabulary
        self._rng = np.random.default_rng(trajectory.member)
        self._turn = self._length = 0
        self._hash = HASH_START

    def next_request(self) -> GenerationRequest | None:
        if self._turn == len(self._turns):
            return None
        observation, action = self._turns[self._turn]
        new = TokenSpan.of(self._rng.integers(0, self._vocabulary, observation, dtype=np.int32))
        request = GenerationRequest(
            self.id, self._turn, 0, self._length, self._hash, new, SamplingParams(max_new_tokens=action)
        )
        self._length += observation
        self._hash = rolling_hash(self._hash, new)
        return request

    def take(self, action: TokenSpan) -> None:
        self._turn += 1
        self._length += len(action)
        self._hash = rolling_hash(self._hash, action)


async def play(engine: Engine, trace: Trace, vocabulary: int, run: int) -> int:
    """Play the whole trace; returns the number of generated tokens."""
    players = {}
    for member, turns in enumerate(trace):
        player = Player(TrajectoryId("trace", run, run, member), turns, vocabulary)
        players[player.id] = player
    engine.submit([request for player in players.values() if (request := player.next_request())])
    tokens = alive = 0
    alive = len(players)
    while alive:
        requests, finished = [], []
        for result in await engine.results(60.0):
            if not isinstance(result.action, TokenSpan) or result.status != "done":
                raise RuntimeError(f"the engine answered {result}")
            tokens += len(result.action)
            player = players[result.trajectory]
            player.take(result.action)
            request = player.next_request()
            if request is None:
                finished.append(player.id)
            else:
                requests.append(request)
        engine.submit(requests)
        engine.release(finished)
        alive -= len(finished)
    return tokens


def generate_trace(model: PreTrainedModel, trace: Trace, vocabulary: int) -> int:
    """The same trace with ``generate``; returns the number of action tokens."""
    rngs = [np.random.default_rng(member) for member in range(len(trace))]
    histories: list[np.ndarray] = [np.empty(0, np.int64) for _ in trace]
    tokens = 0
    for turn in range(max(map(len, trace))):
        alive = [member for member, turns in enumerate(trace) if turn < len(turns)]
        for first in range(0, len(alive), ROWS):
            batch = alive[first : first + ROWS]
            for member in batch:
                observation = rngs[member].integers(0, vocabulary, trace[member][turn][0])
                histories[member] = np.concatenate([histories[member], observation])
            longest = max(trace[member][turn][1] for member in batch)
            actions = generate(model, [histories[member] for member in batch], longest)
            for member, action in zip(batch, actions, strict=True):
                kept = action[: trace[member][turn][1]]
                histories[member] = np.concatenate([histories[member], kept])
                tokens += len(kept)
    return tokens


def generate(model: PreTrainedModel, histories: list[np.ndarray], new: int) -> np.ndarray:
    width = max(map(len, histories))
    ids = torch.zeros((len(histories), width), dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, history in enumerate(histories):
        ids[row, width - len(history) :] = torch.from_numpy(history)
        mask[row, width - len(history) :] = 1
    settings = GenerationConfig(
        do_sample=True, top_k=0, top_p=1.0, temperature=1.0, max_new_tokens=new, eos_token_id=None, pad_token_id=0
    )
    output = model.generate(input_ids=ids, attention_mask=mask, generation_config=settings)
    actions: np.ndarray = output[:, width:].numpy()
    return actions


def bare_loop(model: PreTrainedModel, vocabulary: int) -> int:
    """Forward passes and argmax only; returns the number of tokens."""
    with torch.inference_mode():
        token = torch.randint(0, vocabulary, (ROWS, PROMPT))
        cache = DynamicCache(config=model.config)
        for _ in range(NEW):
            logits = model(token, past_key_values=cache, use_cache=True, logits_to_keep=1).logits
            token = logits[:, -1].argmax(-1, keepdim=True)
    return ROWS * NEW


def rates(sides: dict[str, Callable[[], int]], rounds: int) -> dict[str, float]:
    """Median tokens for each CPU second, the sides alternating, after one unmeasured round."""
    seen: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds + 1):
        for name, side in sides.items():
            began = time.process_time()
            tokens = side()
            if number:
                seen[name].append(tokens / (time.process_time() - began))
    return {name: statistics.median(values) for name, values in seen.items()}


def report(title: str, found: dict[str, float], target: float) -> None:
    (engine_name, fast), (other_name, slow) = found.items()
    print(title)
    for name, rate in found.items():
        print(f"  {name:34s} {rate:10.0f} tokens/s")
    print(f"  ratio {engine_name} / {other_name}: {fast / slow:.2f} (target {target})\n", flush=True)


def read_trace(path: Path, limit: int | None) -> Trace:
    lines = path.read_text().splitlines()[:limit]
    return [[(observation, action) for observation, action in json.loads(line)["turns"]] for line in lines]


def write_trace(run_folder: Path, path: Path) -> None:
    """A trace of trajectories at even distances from the whole event log of a run."""
    turns: dict[TrajectoryId, list[list[int]]] = {}
    for envelope in read_events(run_folder / "events"):
        if isinstance(envelope.e, TurnFinished):
            turns.setdefault(envelope.e.id, []).append([envelope.e.new_tokens, envelope.e.generated_tokens])
    if not turns:
        raise SystemExit(f"{run_folder} has no turn records: run it with log.turns=true")
    stride = max(1, len(turns) // TRACE_TRAJECTORIES)
    kept = list(turns.values())[::stride][:TRACE_TRAJECTORIES]
    path.write_text("".join(json.dumps({"turns": pairs}) + "\n" for pairs in kept))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="folder or hub id; default: a small Qwen3 with random weights")
    parser.add_argument("--trace", type=Path, default=TRACE)
    parser.add_argument("--trajectories", type=int, help="only the first so many of the trace")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--trace-from", type=Path, metavar="RUN_FOLDER", help="write the trace from a run, and stop")
    arguments = parser.parse_args()
    if arguments.trace_from:
        write_trace(arguments.trace_from, arguments.trace)
        return
    torch.set_num_threads(1)
    torch.manual_seed(0)

    def model() -> PreTrainedModel:
        return load_model(arguments.model).eval() if arguments.model else small_model()

    reference, vocabulary = model(), model().config.vocab_size
    trace = read_trace(arguments.trace, arguments.trajectories)
    single = [[(PROMPT, NEW)]] * ROWS
    with asyncio.Runner() as runner:
        tested = engine(model(), max(len(trace), ROWS))
        runner.run(tested.start())
        runs = iter(range(1_000_000))

        def engine_side(trace: Trace) -> Callable[[], int]:
            return lambda: runner.run(play(tested, trace, vocabulary, next(runs)))

        turns = sum(map(len, trace))
        sides = {"engine": engine_side(trace), "generate": lambda: generate_trace(reference, trace, vocabulary)}
        title = f"multi-turn trace: {len(trace)} trajectories, {turns} turns, {ROWS} rows"
        report(title, rates(sides, arguments.rounds), 2.5)
        sides = {"engine": engine_side(single), "bare loop": lambda: bare_loop(reference, vocabulary)}
        report(f"decode: {ROWS} requests, {PROMPT} + {NEW} tokens", rates(sides, arguments.rounds), 0.8)
        runner.run(tested.stop())


if __name__ == "__main__":
    main()

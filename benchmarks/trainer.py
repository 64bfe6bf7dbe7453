"""One optimizer iteration of the torch trainer, as ratios in one run on one thread.

    OMP_NUM_THREADS=1 python benchmarks/trainer.py [--rounds 5]

The batch is what 4x4 lakes give: 128 trajectories in groups of 8 from random moves on a random map,
about 4.5 one-token turns each, a first observation of 25 tokens and others of 20; the model is a Qwen3
shape of 641,664 parameters. Measured, by CPU time, alternately, the best of the rounds:

* ``train_step``: the trainer as it is;
* ``padded``: the trainer on the library's modules with padded rows of similar length (the fallback);
* ``plain``: forward, full logits, log-softmax and backward of the same trajectories in padded
  micro-batches of as many tokens, in the order they come, without an optimizer: what a plain loop does;
* ``products``: only the matrix products with weights, forward and backward, on as many tokens as
  ``train_step`` computes, each of the exact shape: the limit without computing less;
* ``attention``: the attention of all layers but the last, which is small matrix products in the main.

It is repeated with observations that differ between the members of a group after the first, so that only the
first observation is shared.

What bounds it: products and attention are about three quarters of ``train_step``, at the rate that these
products have alone; the rest is passes over memory (norms, rotary positions, the activation), about a tenth
is planning, rows and the optimizer.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedModel

from rollart.config.config import Config
from rollart.config.model import TinyModelConfig
from rollart.data_plane.training.batching import MicroBatch, Row, micro_batches, rows_of, totals_of
from rollart.data_plane.training.forward import PaddedForward, padded
from rollart.data_plane.training.models import build_tiny_model, load_model
from rollart.data_plane.training.torch_trainer import TorchTrainer
from rollart.data_plane.training.tree_attention import TreeAttention
from rollart.data_plane.weights.store import Manifest, WeightWriter
from rollart.types import (
    Group,
    Score,
    Segment,
    TokenSpan,
    TrainBatch,
    Trajectory,
    TrajectoryId,
    Turn,
    VersionRun,
)

SHAPE = TinyModelConfig(layers=4)
VOCABULARY = 394
GROUPS, GROUP_SIZE, MAX_TURNS = 16, 8, 10
FIRST, NEXT = 25, 20
MOVES = ((0, -1), (1, 0), (0, 1), (-1, 0))


class NoStore(WeightWriter):
    """Nothing is published here."""

    def publish(self, version: int, tensors: object) -> Manifest:
        raise AssertionError("this benchmark publishes nothing")

    def retain(self, oldest: int) -> None: ...

    def close(self) -> None: ...


def lakes(seed: int, index: int, *, shared: bool) -> TrainBatch:
    """Groups of random walks over random maps; ``shared`` keeps observations free of noise."""
    draw = np.random.default_rng([seed, index])
    groups = []
    for number in range(GROUPS):
        board = np.where(draw.random(16) < 0.3, 9, 8)
        board[0], board[15] = 8, 10
        start = np.r_[1, 11:15, draw.integers(20, VOCABULARY, FIRST - 21)]
        members = []
        for member in range(GROUP_SIZE):
            turns, place, reached = _walk(draw, board, start, index, shared)
            identity = TrajectoryId("lake", number, number, member)
            reward = float(reached) + 0.1 * (place[0] + place[1])
            members.append(Trajectory(identity, number, (Segment(tuple(turns)),), Score(reward)))
        groups.append(Group("lake", number, number, tuple(members), index))
    return TrainBatch(index, tuple(groups))


def _walk(
    draw: np.random.Generator, board: np.ndarray, start: np.ndarray, index: int, shared: bool
) -> tuple[list[Turn], tuple[int, int], bool]:
    place, turns, state = (0, 0), [], 8
    for turn in range(MAX_TURNS):
        cells = board.copy()
        cells[place[0] * 4 + place[1]] = 7
        salt = np.zeros(1, int) if shared or turn == 0 else draw.integers(0, VOCABULARY, 1)
        head = start if turn == 0 else np.array([15, 16])
        observation = np.r_[head, cells, salt, 17][: FIRST if turn == 0 else NEXT]
        move = int(draw.integers(0, 4))
        span = TokenSpan.of(np.array([3 + move], np.int32), np.array([np.log(0.25)], np.float32))
        turns.append(Turn(TokenSpan.of(observation.astype(np.int32)), span, (VersionRun(index, 1),)))
        row, column = place[0] + MOVES[move][0], place[1] + MOVES[move][1]
        if 0 <= row < 4 and 0 <= column < 4:
            place = (row, column)
            state = int(board[row * 4 + column])
        if state != 8 or draw.random() < 0.1:
            break
    return turns, place, state == 10


def plain_step(model: PreTrainedModel, rows: list[Row], budget: int) -> Callable[[], None]:
    """Forward and backward with full logits, rows padded in the order they come."""
    parts: list[list[Row]] = [[]]
    for row in rows:
        if (len(parts[-1]) + 1) * max(len(r.ids) for r in [*parts[-1], row]) > budget:
            parts.append([])
        parts[-1].append(row)

    def step() -> None:
        model.zero_grad(set_to_none=False)
        for part in parts:
            longest = max(len(row.ids) for row in part)
            ids = np.stack([np.pad(row.ids, (0, longest - len(row.ids))) for row in part]).astype(np.int64)
            mask = np.stack([np.arange(longest) < len(row.ids) for row in part])
            targets = np.zeros((len(part), longest), np.int64)
            weights = np.zeros((len(part), longest), np.float32)
            for place, row in enumerate(part):
                targets[place, row.slots], weights[place, row.slots] = row.targets, row.advantage
            logits = model(input_ids=torch.from_numpy(ids), attention_mask=torch.from_numpy(mask).long()).logits
            chosen = torch.log_softmax(logits, -1).gather(2, torch.from_numpy(targets)[..., None])[..., 0]
            (chosen * torch.from_numpy(weights)).sum().backward()

    return step


def products(model: PreTrainedModel, packed: list[MicroBatch]) -> Callable[[], None]:
    """The matrix products of all layers on the tokens of ``packed``, less what the trainer skips."""
    layers = [
        [parameter.detach() for parameter in layer.parameters() if parameter.ndim == 2] for layer in model.model.layers
    ]
    wide = max(max(weight.shape) for weights in layers for weight in weights)
    most = max(len(batch.tokens) for batch in packed)
    inputs, outputs = torch.randn(most, wide), torch.randn(most, wide)

    def rows(batch: MicroBatch, layer: int, position: int) -> int:
        if layer == 0 and position < 3:  # queries, keys, values
            return len(np.unique(batch.tokens))
        return len(batch.predictions) if layer == len(layers) - 1 and position not in (1, 2) else len(batch.tokens)

    def step() -> None:
        for batch in packed:
            for layer, weights in enumerate(layers):
                for position, weight in enumerate(weights):
                    size = rows(batch, layer, position)
                    x = inputs.view(-1)[: size * weight.shape[1]].view(size, -1)
                    y = outputs.view(-1)[: size * weight.shape[0]].view(size, -1)
                    _ = x @ weight.t(), y @ weight, y.t() @ x

    return step


def attention(model: PreTrainedModel, packed: list[MicroBatch]) -> Callable[[], None]:
    """Attention of all layers but the last, forward and backward, of plans made beforehand."""
    config = model.config
    heads, kv_heads, head_dim, layers = SHAPE.heads, SHAPE.kv_heads, SHAPE.head_dim, config.num_hidden_layers
    plans = []
    for batch in packed:
        owned = [np.arange(start, len(path)) for path, start in zip(batch.paths, batch.owned_from, strict=True)]
        numbers = [path[own] for path, own in zip(batch.paths, owned, strict=True)]
        plan = TreeAttention(batch.paths, owned, numbers, heads, kv_heads, head_dim, torch.device("cpu"), layers)
        plans.append((plan, len(batch.tokens)))
    most = max(size for _, size in plans)
    queries, context = torch.randn(most + 1, heads * head_dim), torch.randn(most, kv_heads * 2 * head_dim)

    def step() -> None:
        for plan, size in plans:
            for _ in range(layers - 1):
                _, saved = plan.forward(queries[:size], context[:size])
                plan.add_to_nodes(plan.backward(queries[: size + 1], saved)[1], size)

    return step


def measure(steps: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Least CPU seconds of each, taken alternately."""
    best = dict.fromkeys(steps, float("inf"))
    for _ in range(rounds):
        for name, step in steps.items():
            began = time.process_time()
            step()
            best[name] = min(best[name], time.process_time() - began)
    return best


def run(rounds: int, shared: bool) -> None:
    config = Config.model_validate(
        {"domains": {"lake": {"env": "frozen_lake"}}, "training": {"device": "cpu"}, "run": {"iterations": 1000}}
    )
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        build_tiny_model(SHAPE, [f"w{number}" for number in range(VOCABULARY - 4)], 0, folder)
        trainer = TorchTrainer(config, folder, NoStore())
        print(trainer.start(None).description)
        model = load_model(folder)
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
    batch = lakes(0, 0, shared=shared)
    rows = rows_of(batch, config.domains, config.training)
    useful = [row for row in rows if row.advantage]
    packed = list(micro_batches(useful, totals_of(rows), config.training, share_prefixes=True))
    side_by_side = list(micro_batches(useful, totals_of(rows), config.training, share_prefixes=False))
    fallback = PaddedForward(model)

    def padded_step() -> None:
        model.zero_grad(set_to_none=False)
        for part in side_by_side:
            fallback.accumulate(part, lambda values, entropies, _: values.sum(), entropy_gradient=False)

    def train_step() -> None:
        index = trainer.info().version
        trainer.train_step(TrainBatch(index, batch.groups))

    best = measure(
        {
            "train_step": train_step,
            "padded": padded_step,
            "plain": plain_step(model, rows, config.training.micro_batch_tokens),
            "products": products(model, packed),
            "attention": attention(model, packed),
        },
        rounds,
    )
    tokens = sum(len(row.ids) for row in rows)
    computed = sum(len(part.tokens) for part in packed)
    cells = sum(padded(part)[0].size for part in side_by_side)
    print(f"{len(rows)} trajectories, {len(useful)} of them with an advantage, {tokens} tokens;")
    print(f"computed: {computed} packed, {cells} padded; {sum(len(row.targets) for row in rows)} generated")
    for name, seconds in best.items():
        print(f"{name:>12}: {seconds * 1e3:7.1f} ms CPU, {seconds / best['train_step']:5.2f} of train_step")
    print(f"{len(rows) / best['train_step']:.0f} trajectories in a CPU second")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for shared in (True, False):
        print(f"\nobservations {'depend on the moves alone' if shared else 'differ between members after the first'}")
        run(arguments.rounds, shared)

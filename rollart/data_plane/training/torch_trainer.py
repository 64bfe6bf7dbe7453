"""The trainer in one process: any Hugging Face causal language model, torch, CPU or CUDA.

One ``train_step(k)`` is: rows from the batch, micro-batches from the rows, gradients added up over the
micro-batches of each optimizer step, the step. Invariants:

* the weights of version k are a function of the configuration and of batches 0 .. k-1 (kernels are
  deterministic on a CPU, groups and members are put in canonical order first);
* trajectories with advantage 0 are not computed: they have no gradient. They count in the totals that the
  loss divides by, and not in the means of entropy, ratios and gaps. With an entropy bonus they are computed;
* a step that fails leaves weights, optimizer and version as they were;
* ``publish`` and ``save`` read a snapshot that no later step writes to.

Who calls it: the training Worker (:mod:`rollart.data_plane.training.worker`), and the plain synchronous
loop of the tests.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from rollart.config.algorithm import describe_algorithm
from rollart.config.config import Config
from rollart.config.training import TrainingConfig
from rollart.data_plane.training import checkpoint
from rollart.data_plane.training.batching import (
    MicroBatch,
    Row,
    micro_batches,
    minibatches_of,
    rows_of,
    totals_of,
)
from rollart.data_plane.training.fast_forward import FastForward, agrees, unsupported
from rollart.data_plane.training.forward import PaddedForward, PolicyForward
from rollart.data_plane.training.health import alarms, batch_metrics
from rollart.data_plane.training.losses import Entries, LossSums, metrics_of, policy_loss
from rollart.data_plane.training.models import ModelError, load_model, weights_of
from rollart.data_plane.training.optimizer import Optimizer, entropy_scale, learning_rate
from rollart.data_plane.training.trainer import Trainer, TrainerInfo
from rollart.data_plane.weights.layout import checksum_of
from rollart.data_plane.weights.store import Manifest, NamedBytes, WeightWriter
from rollart.types import TrainBatch, TrainReport, derive_seed

_RNG = "rng.cpu"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """The weights of one version, copied to host memory."""

    version: int
    tensors: tuple[NamedBytes, ...]
    checksum: str


@dataclass(slots=True)
class _Step:
    """The data of one optimizer step."""

    micro_batches: list[MicroBatch]
    proximal: list[Tensor | None]


class TorchTrainer(Trainer):
    """See the module docstring.

    Args:
        config: The whole configuration; the trainer reads ``training``, ``domains``, ``weights`` and ``run``.
        model: Folder or hub id of W_0.
        writer: Where versions are published.
    """

    def __init__(self, config: Config, model: str | Path, writer: WeightWriter) -> None:
        self._config = config
        self._training: TrainingConfig = config.training
        self._source = model
        self._writer = writer
        self._version = 0

    def start(self, resume: Path | None) -> TrainerInfo:
        """See the interface.

        Raises:
            ModelError: the model or the checkpoint cannot be loaded; the message says why.
        """
        torch.set_num_threads(self._training.threads)
        torch.manual_seed(derive_seed(self._config.run.seed, "trainer"))
        self._device = _device(self._training.device)
        self._model = load_model(resume or self._source, "float32", self._device).eval()
        self._optimizer = Optimizer(dict(weights_of(self._model)), self._training)
        if resume is not None:
            self._restore(resume)
        self._forward = self._choose_forward()
        self._forward.refresh()
        self._snapshot = self._take_snapshot(self._config.weights.bucket_bytes)
        return self.info()

    def info(self) -> TrainerInfo:
        """What the trainer holds now."""
        return TrainerInfo(
            version=self._version,
            parameters=sum(tensor.numel() for _, tensor in weights_of(self._model)),
            checksum=self._snapshot.checksum,
            description=describe_algorithm(self._config),
            forward=self._forward.name,
        )

    def train_step(self, batch: TrainBatch) -> TrainReport:
        if batch.index != self._version:
            what = "was trained already" if batch.index < self._version else "comes too early"
            raise ValueError(f"batch {batch.index} {what}: the trainer holds version {self._version}")
        began = time.perf_counter()
        iterations = self._config.run.iterations
        scale = entropy_scale(self._training, batch.index, iterations)
        rows = rows_of(batch, self._config.domains, self._training, scale)
        self._check_tokens(rows)
        metrics = batch_metrics(batch, rows)
        rate = learning_rate(self._training, batch.index, iterations)
        metrics |= self._optimize(self._plan(rows), rate)
        metrics |= {"learning_rate": rate, "tokens": float(totals_of(rows).tokens)}
        self._version = batch.index + 1
        self._snapshot = self._take_snapshot(self._config.weights.bucket_bytes)
        return TrainReport(
            index=batch.index,
            version=self._version,
            metrics=metrics,
            seconds=time.perf_counter() - began,
            tokens=totals_of(rows).tokens,
            alarms=alarms(metrics, self._training),
        )

    def publish(self) -> Manifest:
        snapshot = self._snapshot
        return self._writer.publish(snapshot.version, snapshot.tensors)

    def retain(self, oldest: int) -> None:
        self._writer.retain(oldest)

    def save(self, folder: Path) -> None:
        """See the interface; older checkpoints of the same series beyond ``checkpoint.keep`` are deleted.

        Raises:
            OSError: it could not be written; earlier checkpoints are untouched.
        """
        state = checkpoint.TrainerState(
            checkpoint.SCHEMA_VERSION, self._version, self._snapshot.checksum, self._config.weights.bucket_bytes
        )
        tensors = {**self._optimizer.state(), _RNG: torch.get_rng_state()}
        checkpoint.save_checkpoint(folder, self._model, self._source, state, tensors)
        checkpoint.prune(folder, self._training.checkpoint.keep)

    def stop(self) -> None:
        self._writer.close()

    def _restore(self, folder: Path) -> None:
        state, tensors = checkpoint.load_state(folder)
        random_state = tensors.pop(_RNG, None)
        try:
            self._optimizer.load_state(tensors)
        except ValueError as error:
            raise ModelError(f"the checkpoint {folder} does not fit: {error}") from error
        if random_state is not None:
            torch.set_rng_state(random_state)
        self._version = state.version
        found = self._take_snapshot(state.bucket_bytes).checksum
        if found != state.checksum:
            raise ModelError(
                f"the checkpoint {folder} is damaged: its weights are not those it was saved with (checksum {found}, "
                f"not {state.checksum}); resume from an older one"
            )

    def _choose_forward(self) -> PolicyForward:
        """The packed forward pass where it applies and agrees with the library's, else the padded one."""
        if self._training.dtype == "bfloat16":
            return PaddedForward(self._model, torch.bfloat16)
        reason = unsupported(self._model)
        if reason is None:
            fast = FastForward(self._model)
            if agrees(fast, self._model):
                return fast
            reason = "its log-probabilities differ from the library's"
        _log.info("training %s on padded rows, without the packed forward pass: %s", self._source, reason)
        return PaddedForward(self._model)

    def _check_tokens(self, rows: Sequence[Row]) -> None:
        vocabulary = self._model.get_input_embeddings().weight.shape[0]
        for row in rows:
            largest = max(int(row.ids.max()), int(row.targets.max()))
            if largest >= vocabulary:
                raise ValueError(
                    f"trajectory {row.id} has token {largest}, the model knows {vocabulary}: "
                    "it was made with another tokenizer"
                )

    def _plan(self, rows: Sequence[Row]) -> list[_Step]:
        """The optimizer steps of one iteration, with the proximal log-probabilities where they are needed."""
        training = self._training
        steps: list[_Step] = []
        for part in minibatches_of(rows, training.minibatches) or [[]]:
            useful = [row for row in part if row.advantage != 0.0 or row.entropy_bonus]
            packed = micro_batches(useful, totals_of(part), training, share_prefixes=self._forward.share_prefixes)
            steps.append(_Step(list(packed), []))
        several = training.epochs * len(steps) > 1
        for step in steps:
            for micro_batch in step.micro_batches:
                decoupled = several and training.correction == "tis"
                step.proximal.append(self._forward.log_probabilities(micro_batch) if decoupled else None)
        return steps * training.epochs

    def _optimize(self, steps: Sequence[_Step], rate: float) -> dict[str, float]:
        """All optimizer steps, or none."""
        backup = [tensor.clone() for tensor in self._optimizer.state().values()] if len(steps) > 1 else []
        sums: list[LossSums] = []
        norms: list[float] = []
        try:
            for step in steps:
                sums.append(self._gradients(step))
                if not math.isfinite(sums[-1].loss):
                    raise FloatingPointError(f"the loss is {sums[-1].loss}")
                norms.append(self._optimizer.step(rate))
                self._forward.refresh()
        except FloatingPointError as error:
            if norms:
                self._undo(backup)
            raise FloatingPointError(
                f"{error} in iteration {self._version}: the weights are unchanged (lower training.learning_rate, "
                "or look for extreme rewards or log-probabilities)"
            ) from None
        return metrics_of(sums) | {"grad_norm": sum(norms) / len(norms)}

    def _gradients(self, step: _Step) -> LossSums:
        sums = LossSums()
        self._optimizer.zero_gradients()
        for micro_batch, proximal in zip(step.micro_batches, step.proximal, strict=True):
            entries = Entries(
                behaviour=self._tensor(micro_batch.behaviour),
                proximal=proximal,
                advantages=self._tensor(micro_batch.advantages),
                coefficients=self._tensor(micro_batch.coefficients),
                entropy_weights=self._tensor(micro_batch.entropy_weights),
                on_policy=self._tensor(micro_batch.on_policy),
            )

            def loss(values: Tensor, entropies: Tensor, part: slice, entries: Entries = entries) -> Tensor:
                return policy_loss(values, entropies, entries.part(part), self._training, sums)

            self._forward.accumulate(micro_batch, loss, entropy_gradient=bool(micro_batch.entropy_weights.any()))
        self._forward.collect()
        return sums.read()

    def _undo(self, optimizer_state: Sequence[Tensor]) -> None:
        """Back to the start of the iteration: the snapshot's weights, the optimizer's saved state."""
        with torch.no_grad():
            for (_, parameter), saved in zip(weights_of(self._model), self._snapshot.tensors, strict=True):
                parameter.copy_(torch.from_numpy(saved.data).view(parameter.dtype).view(parameter.shape))
            for tensor, old in zip(self._optimizer.state().values(), optimizer_state, strict=True):
                tensor.copy_(old)
        self._forward.refresh()

    def _take_snapshot(self, bucket_bytes: int) -> _Snapshot:
        tensors = tuple(
            NamedBytes(name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), _bytes_of(tensor))
            for name, tensor in weights_of(self._model)
        )
        return _Snapshot(self._version, tensors, checksum_of(tensors, bucket_bytes))

    def _tensor(self, values: np.ndarray) -> Tensor:
        return torch.from_numpy(values).to(self._device)


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(name)


def _bytes_of(tensor: Tensor) -> np.ndarray:
    """A copy of a tensor's memory as flat ``uint8``."""
    copy = tensor.detach().to("cpu", copy=True).contiguous()
    result: np.ndarray = copy.reshape(-1).view(torch.uint8).numpy()
    return result

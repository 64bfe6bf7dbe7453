"""The policy as the trainer sees it: log-probabilities of a micro-batch's entries, and their gradients.

:class:`PolicyForward` is the interface. :class:`PaddedForward` works for every causal language model
of the model library: rows are padded on the right, where a causal model cannot see it. The faster
:mod:`rollart.data_plane.training.fast_forward` covers the common decoder architectures.

Invariants:

* gradients add up over calls of ``accumulate`` until ``collect`` has put them into the parameters;
* padding repeats a row's own last token, so that no token outside the batch is ever computed;
* nothing here draws a random number.

Who calls it: :mod:`rollart.data_plane.training.torch_trainer`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from rollart.data_plane.training.batching import MicroBatch
from rollart.data_plane.training.losses import token_log_probabilities

LossFunction = Callable[[Tensor, Tensor, slice], Tensor]
"""From log-probabilities and entropies of some entries, and which ones they are, to their loss."""


class PolicyForward(ABC):
    """Computes with the present weights of one model."""

    name: str
    """For the user: ``padded`` or ``packed``."""
    share_prefixes: bool
    """How micro-batches have to be packed for it."""

    @abstractmethod
    def refresh(self) -> None:
        """The model's weights have changed."""

    @abstractmethod
    def log_probabilities(self, batch: MicroBatch) -> Tensor:
        """``float32[m]`` of the entries, without a gradient."""

    @abstractmethod
    def accumulate(self, batch: MicroBatch, loss: LossFunction, *, entropy_gradient: bool) -> None:
        """Forward, ``loss`` on all entries (in one or more consecutive slices), backward."""

    @abstractmethod
    def collect(self) -> None:
        """The gradients accumulated so far are in the parameters' ``grad`` when this returns."""


class PaddedForward(PolicyForward):
    """Any causal language model, through its own forward pass.

    Args:
        model: In float32, on its device.
        autocast: Compute type, ``None`` for float32.
    """

    name = "padded"
    share_prefixes = False

    def __init__(self, model: PreTrainedModel, autocast: torch.dtype | None = None) -> None:
        self._model = model
        self._autocast = autocast

    def refresh(self) -> None:
        pass

    def collect(self) -> None:
        pass

    @torch.no_grad()
    def log_probabilities(self, batch: MicroBatch) -> Tensor:
        return self._entries(batch, entropy_gradient=False)[0]

    def accumulate(self, batch: MicroBatch, loss: LossFunction, *, entropy_gradient: bool) -> None:
        log_probabilities, entropies = self._entries(batch, entropy_gradient=entropy_gradient)
        loss(log_probabilities, entropies, slice(0, len(batch.targets))).backward()  # type: ignore[no-untyped-call]

    def _entries(self, batch: MicroBatch, *, entropy_gradient: bool) -> tuple[Tensor, Tensor]:
        device = self._model.device
        ids, rows, columns = padded(batch)
        needed, kept = np.unique(columns, return_inverse=True)
        with self._precision(device):
            logits = self._model(
                input_ids=torch.from_numpy(ids).to(device),
                logits_to_keep=torch.from_numpy(needed).to(device),
                use_cache=False,
            ).logits
        logits = logits[torch.from_numpy(rows).to(device), torch.from_numpy(kept).to(device)].float()
        return token_log_probabilities(
            logits / torch.from_numpy(batch.prediction_temperatures).to(device)[:, None],
            torch.from_numpy(batch.entry_predictions).to(device),
            torch.from_numpy(batch.targets).to(device),
            entropy_gradient=entropy_gradient,
        )

    def _precision(self, device: torch.device) -> AbstractContextManager[object]:
        return torch.autocast(device.type, dtype=self._autocast or torch.bfloat16, enabled=self._autocast is not None)


def padded(batch: MicroBatch) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows side by side, for a micro-batch that shares no prefixes.

    Returns:
        Input ids ``int64[rows, longest]``, padded on the right with the row's last token; and of each
        prediction its row and column, ``int64[p]``.
    """
    longest = max(len(path) for path in batch.paths)
    ids = np.stack([np.pad(batch.tokens[path], (0, longest - len(path)), mode="edge") for path in batch.paths])
    row_of_node = np.repeat(np.arange(len(batch.paths)), [len(path) for path in batch.paths])
    return ids, row_of_node[batch.predictions], batch.positions[batch.predictions]

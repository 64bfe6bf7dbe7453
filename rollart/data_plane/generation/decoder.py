"""How a model computes a step's tokens: the interface, and the decoder that runs any model's own modules.

Who calls it: the model runner, which chooses the decoder.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod

import torch
from transformers import PreTrainedModel

from rollart.data_plane.generation.attention import IMPLEMENTATION, StepPlan, UnsupportedAttention
from rollart.data_plane.generation.norms import fuse_norms


class UnsupportedModel(RuntimeError):
    """The torch engine cannot run this model; the message says why and what to do."""


REMEDY = "use an engine that supports it, or a model whose modules call transformers' attention interface"


class Decoder(ABC):
    """Computes logits of flattened tokens, with keys and values in the cache.

    Attributes:
        name: For the log.
    """

    name: str

    @abstractmethod
    def forward(
        self, tokens: torch.Tensor, positions: torch.Tensor, plan: StepPlan, sample: torch.Tensor | None
    ) -> torch.Tensor:
        """One forward over ``int64[T]`` tokens.

        Args:
            tokens, positions: ``int64[T]``.
            plan: Their attention.
            sample: ``int64[S]``, tokens whose logits are wanted; ``None`` means all.

        Returns:
            ``float32[S, vocabulary]``.
        """

    @abstractmethod
    def refresh(self) -> None:
        """The model's parameters have changed in place."""


class ModulesDecoder(Decoder):
    """Runs the model's own modules, through transformers' attention interface.

    Args:
        model: Its attention implementation is replaced and its RMS norms are fused.

    Raises:
        UnsupportedModel: it does not honour the attention interface.
    """

    name = "modules"

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self._class = type(model).__name__
        parameters = inspect.signature(model.forward).parameters
        if not {"logits_to_keep", "position_ids"} <= parameters.keys():
            raise UnsupportedModel(f"{self._class}.forward lacks logits_to_keep or position_ids: {REMEDY}")
        try:
            model.set_attn_implementation(IMPLEMENTATION)
        except (ValueError, KeyError, AttributeError) as error:
            raise UnsupportedModel(f"{self._class} does not take an attention function ({error}): {REMEDY}") from error
        fuse_norms(model)

    def forward(
        self, tokens: torch.Tensor, positions: torch.Tensor, plan: StepPlan, sample: torch.Tensor | None
    ) -> torch.Tensor:
        # when all are sampled they go as a batch of sequences of one token, which saves transpositions
        axis = 1 if sample is None else 0
        try:
            output = self._model(
                input_ids=tokens.unsqueeze(axis),
                position_ids=positions.unsqueeze(axis),
                use_cache=False,
                logits_to_keep=0 if sample is None else sample,
                rollart_plan=plan,
            )
        except UnsupportedAttention as error:
            raise UnsupportedModel(f"{self._class}: {error}: {REMEDY}") from error
        logits: torch.Tensor = output.logits.squeeze(axis).float()
        return logits

    def refresh(self) -> None:
        """The modules read the parameters themselves."""

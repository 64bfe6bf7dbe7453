"""The optimizer of the torch trainer: AdamW, gradient clipping and the learning-rate schedule.

Invariants:

* a step with a non-finite gradient changes nothing;
* the learning rate is a pure function of the iteration, so there is no scheduler state to save;
* the state is a flat mapping of tensors by parameter name, so that it needs no pickle on disk.

Who calls it: :mod:`rollart.data_plane.training.torch_trainer`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from rollart.config.training import TrainingConfig

_MOMENTS = ("exp_avg", "exp_avg_sq")
_STEP = "step"


def learning_rate(config: TrainingConfig, iteration: int, iterations: int) -> float:
    """The rate of iteration ``iteration`` (from 0) of ``iterations``.

    Linear warm-up reaches the full rate at iteration ``warmup - 1``; the decay reaches the final rate at
    the last iteration and stays there.
    """
    if iteration < config.warmup:
        return config.learning_rate * (iteration + 1) / config.warmup
    span = max(1, iterations - 1 - config.warmup)
    progress = min(1.0, (iteration - config.warmup) / span)
    match config.schedule:
        case "constant":
            return config.learning_rate
        case "linear":
            remaining = 1.0 - progress
        case "cosine":
            remaining = 0.5 * (1.0 + math.cos(math.pi * progress))
    return config.final_learning_rate + (config.learning_rate - config.final_learning_rate) * remaining


def entropy_scale(config: TrainingConfig, iteration: int, iterations: int) -> float:
    """What is left of the entropy bonus: 1 at the first iteration, ``entropy_end`` at the last, linear between."""
    progress = min(1.0, iteration / max(1, iterations - 1))
    return 1.0 - (1.0 - config.entropy_end) * progress


class Optimizer:
    """AdamW over a model's parameters; weight decay acts on matrices only.

    Args:
        parameters: By name; tied ones once.
        config: Rates, betas, decay and the clipping norm.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], config: TrainingConfig) -> None:
        self._parameters = dict(parameters)
        self._max_norm = config.max_grad_norm
        decayed = [parameter for parameter in self._parameters.values() if parameter.ndim >= 2]
        others = [parameter for parameter in self._parameters.values() if parameter.ndim < 2]
        self._adamw = torch.optim.AdamW(
            [{"params": decayed, "weight_decay": config.weight_decay}, {"params": others, "weight_decay": 0.0}],
            lr=config.learning_rate,
            betas=(config.beta1, config.beta2),
            fused=True,
        )
        for parameter in self._parameters.values():
            self._adamw.state[parameter] = {
                _STEP: torch.zeros((), dtype=torch.float32, device=parameter.device),
                **{moment: torch.zeros_like(parameter) for moment in _MOMENTS},
            }
            parameter.grad = torch.zeros_like(parameter)

    def zero_gradients(self) -> None:
        """Gradients stay allocated: a step on no data is a step with gradient 0."""
        self._adamw.zero_grad(set_to_none=False)

    def step(self, rate: float) -> float:
        """Clip the gradients and move the weights.

        Returns:
            The global gradient norm before clipping.

        Raises:
            FloatingPointError: the norm is not finite; nothing was changed.
        """
        parameters = list(self._parameters.values())
        norm = float(nn.utils.clip_grad_norm_(parameters, self._max_norm))
        if not math.isfinite(norm):
            raise FloatingPointError(f"the gradient norm is {norm}")
        for group in self._adamw.param_groups:
            group["lr"] = rate
        self._adamw.step()
        return norm

    def state(self) -> dict[str, Tensor]:
        """The live state tensors, as ``name.exp_avg``, ``name.exp_avg_sq``, ``name.step``."""
        return {
            f"{name}.{key}": self._adamw.state[parameter][key]
            for name, parameter in self._parameters.items()
            for key in (*_MOMENTS, _STEP)
        }

    def load_state(self, saved: Mapping[str, Tensor]) -> None:
        """Copy a saved state into the live one.

        Raises:
            ValueError: it belongs to another model; the message names the first difference.
        """
        live = self.state()
        for name in sorted(live.keys() | saved.keys()):
            if name not in saved or name not in live:
                raise ValueError(f"the optimizer state {'lacks' if name in live else 'has an unknown'} {name!r}")
            if saved[name].shape != live[name].shape:
                raise ValueError(
                    f"the optimizer state {name!r} is {list(saved[name].shape)}, not {list(live[name].shape)}"
                )
        with torch.no_grad():
            for name, tensor in live.items():
                tensor.copy_(saved[name])

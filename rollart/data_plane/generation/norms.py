"""Replaces a model's RMS norms by torch's fused one: a tenth of a small model's step goes into their parts.

Transformers writes the norm as six tensor operations. A module is replaced only if it is named so and if the fused
operation gives the same numbers on random input, so variants (Gemma's ``1 + weight``) stay as they are.

Who calls it: the model runner, before its start-up check.
"""

from __future__ import annotations

from functools import partial

import torch
from torch.nn.functional import rms_norm

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}
"""Largest relative difference between the two: a rounding step of the dtype."""


def fuse_norms(model: torch.nn.Module) -> int:
    """Replace what can be replaced, in place; returns how many modules."""
    return sum(_fuse(module) for module in model.modules() if type(module).__name__.endswith("RMSNorm"))


def _fuse(module: torch.nn.Module) -> bool:
    weight = getattr(module, "weight", None)
    epsilon = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    if not isinstance(weight, torch.Tensor) or not isinstance(epsilon, float):
        return False
    fused = partial(rms_norm, normalized_shape=tuple(weight.shape), weight=weight, eps=epsilon)
    generator = torch.Generator().manual_seed(0)
    sample = torch.randn((8, *weight.shape), generator=generator).to(weight)
    with torch.no_grad():
        tolerance = TOLERANCE.get(weight.dtype, 0.0)
        if not torch.allclose(module(sample), fused(sample), rtol=tolerance, atol=tolerance):
            return False
    module.forward = fused
    return True

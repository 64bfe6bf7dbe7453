"""From logits to tokens and their log-probabilities, for rows with different parameters at once.

Invariants:

* the noise of a token is a pure function of (seed, trajectory, position of the token in the history):
  one uniform number, used by inversion of the cumulative distribution. What else is in the batch, how often
  the engine was suspended, or which engine it is does not enter;
* the log-probability of a sampled token is the logarithm of the probability with which it was drawn: after
  temperature, then top-k, then top-p. A greedy row (temperature 0) reports the model's own log-probability;
* a row's result does not depend on the other rows.

Who calls it: the torch engine core, once a step.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from rollart.types import TrajectoryId, derive_seed

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_SHIFTS = np.array([30, 27, 31, 12], np.uint64)
_ONE = np.uint64(1)


def noise_key(seed: int, trajectory: TrajectoryId) -> int:
    """The 63-bit key of a trajectory's noise."""
    return derive_seed(seed, "sampling", str(trajectory))


def uniforms(keys: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Uniform numbers in [0, 1 - 2^-52], by the SplitMix64 generator (Steele, Lea, Flood 2014).

    Args:
        keys: ``uint64[n]``, a generator's seed for each row.
        positions: ``int64[n]``, which number of that generator.

    Returns:
        ``float64[n]``.
    """
    state = keys + _GOLDEN * (positions.astype(np.uint64) + _ONE)  # modulo 2^64
    state = (state ^ (state >> _SHIFTS[0])) * _MIX_1
    state = (state ^ (state >> _SHIFTS[1])) * _MIX_2
    state ^= state >> _SHIFTS[2]
    numbers: np.ndarray = (state >> _SHIFTS[3]).astype(np.float64) * 2.0**-52
    return numbers


class RowParameters(NamedTuple):
    """How each row samples.

    Attributes:
        temperature: ``float32[n]``, 0 for greedy.
        top_p: ``float32[n]``, 1 for off.
        top_k: ``int64[n]``, 0 for off.
    """

    temperature: np.ndarray
    top_p: np.ndarray
    top_k: np.ndarray


def sample(logits: torch.Tensor, parameters: RowParameters | None, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Draw one token a row.

    Args:
        logits: ``float32[n, vocabulary]``.
        parameters: How; ``None`` means temperature 1 without top-p and top-k for every row.
        noise: ``float64[n]``, from :func:`uniforms`.

    Returns:
        Tokens ``int64[n]`` and log-probabilities ``float32[n]``; not finite where the logits are not.
    """
    uniform = torch.from_numpy(noise).to(logits.device)[:, None]
    scores, greedy = (logits, None) if parameters is None else _process(logits, parameters)
    probabilities = torch.softmax(scores, -1)
    cumulative = probabilities.cumsum(-1, dtype=torch.float64)
    # right=True finds the first token whose cumulative mass exceeds the noise, so one of mass 0 never wins
    tokens = torch.searchsorted(cumulative, uniform * cumulative[:, -1:], right=True)
    tokens.clamp_(max=logits.shape[1] - 1)  # NaN logits only
    if greedy is not None:
        tokens = torch.where(greedy, logits.argmax(-1, keepdim=True), tokens)
    chosen = probabilities.gather(-1, tokens)[:, 0].cpu().numpy()
    with np.errstate(divide="ignore"):
        logprobs: np.ndarray = np.log(chosen)
    return tokens[:, 0].cpu().numpy(), logprobs


def _process(logits: torch.Tensor, parameters: RowParameters) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Logits after temperature, top-k and top-p, and which rows are greedy (a ``[n, 1]`` mask)."""
    device = logits.device
    is_greedy = parameters.temperature == 0
    temperature = np.where(is_greedy, np.float32(1), parameters.temperature)
    scores = logits
    if (temperature != 1).any():
        scores = logits / torch.from_numpy(temperature).to(device)[:, None]
    filtered = np.flatnonzero(((parameters.top_p < 1) | (parameters.top_k > 0)) & ~is_greedy)
    if len(filtered):
        rows = torch.from_numpy(filtered).to(device)
        kept = _filter(scores[rows], parameters.top_p[filtered], parameters.top_k[filtered])
        scores = scores.index_copy(0, rows, kept)
    greedy = torch.from_numpy(is_greedy).to(device)[:, None] if is_greedy.any() else None
    return scores, greedy


def _filter(scores: torch.Tensor, top_p: np.ndarray, top_k: np.ndarray) -> torch.Tensor:
    """Keep the ``top_k`` best tokens of each row, then the smallest set of these with mass ``top_p``."""
    device = scores.device
    vocabulary = scores.shape[1]
    ordered, order = scores.sort(dim=-1, descending=True, stable=True)
    limit = torch.from_numpy(np.where(top_k > 0, top_k, vocabulary)).to(device)[:, None]
    ordered = ordered.masked_fill(torch.arange(vocabulary, device=device) >= limit, float("-inf"))
    mass = ordered.softmax(-1, dtype=torch.float64)
    before = mass.cumsum(-1) - mass
    nucleus = torch.from_numpy(np.where(top_p < 1, top_p, 2.0)).to(device)[:, None]
    drop = before >= nucleus
    drop[:, 0] = False  # the best token always stays
    ordered = ordered.masked_fill(drop, float("-inf"))
    return torch.empty_like(scores).scatter_(-1, order, ordered)

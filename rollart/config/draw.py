"""Distributions as they are written in a configuration, checked once and drawn from often.

A :data:`Draw` stays the plain data that the file has, so that it can stand in a section and among the
arguments of an environment alike. What draws a million times compiles it once with :func:`sampler`. No
value is ever negative.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Protocol

from pydantic import PlainSerializer, PlainValidator

from rollart.config.base import unknown_key

FAR = 6.0
"""Standard deviations after which a tail without a maximum counts as ended: one draw in a billion is beyond."""

WIDEST = 10.0
"""Largest ``sigma`` of a log-normal distribution: its middle two thirds span a factor of e^20 already."""

SHAPES = {
    "log-normal": ("{median: ..., sigma: ..., max: ...}", ("median", "sigma"), ("max",)),
    "normal": ("{mean: ..., std: ..., min: ..., max: ...}", ("mean", "std"), ("min", "max")),
    "mixture": ("{values: [...], weights: [...]}", ("values",), ("weights",)),
    "sample": ("{sample: [...]}", ("sample",), ()),
}
"""Written form, required and optional keys of the distributions that are mappings."""

_KEYS = [key for _, required, optional in SHAPES.values() for key in (*required, *optional)]


class Source(Protocol):
    """What a draw takes its numbers from; :class:`random.Random` is one."""

    def random(self) -> float: ...
    def gauss(self, mu: float, sigma: float) -> float: ...


Sampler = Callable[[Source], float]


def checked_draw(value: Any) -> Any:
    """``value`` itself, if it is a distribution.

    Raises:
        ValueError: what is wrong with it, and how it is written.
    """
    if isinstance(value, Mapping):
        _check_mapping(value)
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        if len(value) != 2:
            raise ValueError(f"{_shown(value)} has {len(value)} entries: a uniform distribution is [low, high]")
        low, high = (_number(part, "a bound of [low, high]") for part in value)
        if low > high:
            raise ValueError(f"{_shown(value)} ends before it begins: write [{high:g}, {low:g}]")
    else:
        _number(value, "it")
    return value


def _as_it_is(value: Any) -> Any:
    return value


Draw = Annotated[
    float | Sequence[float] | Mapping[str, Any],
    PlainValidator(checked_draw),
    PlainSerializer(_as_it_is, return_type=Any),
]
"""A number; ``[low, high]``, uniform; ``{median, sigma, max}``, log-normal, larger values set to ``max``;
``{mean, std, min, max}``, normal, values outside set to ``min`` (0 if left out) or ``max``; ``{values, weights}``, one
of several draws, by default equally likely; ``{sample: [...]}``, one of the values as measured."""


def sampler(distribution: Draw) -> Sampler:
    """The distribution as a function of the source of random numbers; compile once, draw often.

    Raises:
        ValueError: it is not a distribution.
    """
    checked_draw(distribution)
    return _compiled(distribution)


def draw(distribution: Draw, source: Source) -> float:
    """One value of a distribution, from the next numbers of ``source``."""
    return sampler(distribution)(source)


def mean_of(distribution: Draw) -> float:
    """The expected value, exact: also where the distribution is cut."""
    checked_draw(distribution)
    return _mean(distribution)


def upper_end(distribution: Draw) -> float:
    """The largest value that a draw can practically give: the maximum, or :data:`FAR` deviations out."""
    checked_draw(distribution)
    return _upper(distribution)


def multiplied(distribution: Draw, factor: float) -> Draw:
    """The distribution of ``factor`` times the value, whose draws take the same numbers of a source."""
    checked_draw(distribution)
    return _multiplied(distribution, factor)


def _multiplied(distribution: Draw, factor: float) -> Draw:
    if not isinstance(distribution, Mapping):
        if not isinstance(distribution, Sequence):
            return distribution * factor
        return [part * factor for part in distribution]
    changed: dict[str, Any] = {}
    for key, value in distribution.items():
        match key:
            case "sigma" | "weights":
                changed[key] = value  # of a logarithm, and of nothing that has a size
            case "values" | "sample":
                changed[key] = [_multiplied(part, factor) for part in value]
            case _:
                changed[key] = value * factor
    return changed


def _compiled(distribution: Draw) -> Sampler:
    if not isinstance(distribution, Mapping):
        if not isinstance(distribution, Sequence):
            number = float(distribution)
            return lambda _: number
        low, width = distribution[0], distribution[1] - distribution[0]
        return lambda source: low + width * source.random()
    if "median" in distribution:
        return _log_normal(distribution["median"], distribution["sigma"], _max(distribution))
    if "mean" in distribution:
        return _normal(distribution["mean"], distribution["std"], distribution.get("min", 0.0), _max(distribution))
    if "values" in distribution:
        return _mixture([_compiled(part) for part in distribution["values"]], _weights(distribution))
    values = tuple(distribution["sample"])
    count = len(values)
    return lambda source: values[int(source.random() * count)]


def _log_normal(median: float, sigma: float, high: float) -> Sampler:
    exp = math.exp
    if high == math.inf:
        return lambda source: median * exp(source.gauss(0.0, sigma))
    return lambda source: min(median * exp(source.gauss(0.0, sigma)), high)


def _normal(mean: float, std: float, low: float, high: float) -> Sampler:
    return lambda source: min(max(source.gauss(mean, std), low), high)


def _mixture(parts: Sequence[Sampler], weights: Sequence[float]) -> Sampler:
    bounds = list(itertools.accumulate(weights))
    total, find = bounds[-1], bisect.bisect_right
    # The last part that has a weight: rounding may put a number at the very end of the scale.
    last = max(index for index, weight in enumerate(weights) if weight > 0)
    return lambda source: parts[min(find(bounds, source.random() * total), last)](source)


def _mean(distribution: Draw) -> float:
    if not isinstance(distribution, Mapping):
        return (distribution[0] + distribution[1]) / 2 if isinstance(distribution, Sequence) else float(distribution)
    if "median" in distribution:
        return _log_normal_mean(distribution["median"], distribution["sigma"], _max(distribution))
    if "mean" in distribution:
        return _normal_mean(distribution["mean"], distribution["std"], distribution.get("min", 0.0), _max(distribution))
    if "values" in distribution:
        weights = _weights(distribution)
        means = [_mean(part) for part in distribution["values"]]
        return math.fsum(w * m for w, m in zip(weights, means, strict=True)) / math.fsum(weights)
    return math.fsum(distribution["sample"]) / len(distribution["sample"])


def _log_normal_mean(median: float, sigma: float, high: float) -> float:
    """Expected value of ``min(X, high)`` for a log-normal X: its partial expectation below, ``high`` above."""
    if median == 0 or sigma == 0 or high == 0:
        return min(median, high)
    uncut = median * math.exp(sigma**2 / 2)
    if high == math.inf:
        return uncut
    z = (math.log(high) - math.log(median)) / sigma
    return uncut * _cumulative(z - sigma) + high * _cumulative(-z)


def _normal_mean(mean: float, std: float, low: float, high: float) -> float:
    """Expected value of a normal variable of which values outside ``[low, high]`` are set to the bound."""
    if std == 0:
        return min(max(mean, low), high)
    a, b = (low - mean) / std, (high - mean) / std
    inside = mean * (_cumulative(b) - _cumulative(a)) + std * (_density(a) - _density(b))
    return low * _cumulative(a) + inside + (high * _cumulative(-b) if high < math.inf else 0.0)


def _upper(distribution: Draw) -> float:
    if not isinstance(distribution, Mapping):
        return float(distribution[1] if isinstance(distribution, Sequence) else distribution)
    if "median" in distribution:
        return min(_max(distribution), float(distribution["median"] * math.exp(FAR * distribution["sigma"])))
    if "mean" in distribution:
        far = float(distribution["mean"] + FAR * distribution["std"])
        return min(_max(distribution), max(far, float(distribution.get("min", 0.0))))
    if "values" in distribution:
        pairs = zip(distribution["values"], _weights(distribution), strict=True)
        return max(_upper(part) for part, weight in pairs if weight > 0)
    return float(max(distribution["sample"]))


def _max(distribution: Mapping[str, Any]) -> float:
    return float(distribution.get("max", math.inf))


def _weights(distribution: Mapping[str, Any]) -> Sequence[float]:
    return distribution.get("weights") or [1.0] * len(distribution["values"])


def _cumulative(z: float) -> float:
    return 0.5 * math.erfc(-z / math.sqrt(2))


def _density(z: float) -> float:
    return math.exp(-z * z / 2) / math.sqrt(2 * math.pi)


def _check_mapping(value: Mapping[str, Any]) -> None:
    for key in value:
        if key not in _KEYS:
            raise ValueError(f"{_shown(value)} has an {unknown_key(str(key), _KEYS)}")
    kinds = [kind for kind, (_, required, _) in SHAPES.items() if required[0] in value]
    if len(kinds) != 1:
        forms = ", ".join(form for form, _, _ in SHAPES.values())
        raise ValueError(f"{_shown(value)} is no distribution: write a number, [low, high], {forms}")
    form, required, optional = SHAPES[kinds[0]]
    for key in required:
        if key not in value:
            raise ValueError(f"{_shown(value)} lacks '{key}': a {kinds[0]} distribution is {form}")
    for key in value:
        if key not in (*required, *optional):
            raise ValueError(f"{_shown(value)} has '{key}', but a {kinds[0]} distribution is {form}: leave it out")
    if "values" in value:
        _check_mixture(value)
    elif "sample" in value:
        for number in _entries(value, "sample"):
            _number(number, "a value of 'sample'")
    else:
        for key, number in value.items():
            _number(number, f"'{key}'")
        if value.get("sigma", 0.0) > WIDEST:
            raise ValueError(f"'sigma' is {value['sigma']}, the spread of a logarithm: give {WIDEST:g} or less")
        if "max" in value and value.get("min", 0.0) > value["max"]:
            raise ValueError(f"{_shown(value)} has a 'min' above its 'max': exchange them")


def _check_mixture(value: Mapping[str, Any]) -> None:
    parts = _entries(value, "values")
    for part in parts:
        checked_draw(part)
    if "weights" not in value:
        return
    weights = [_number(weight, "a value of 'weights'") for weight in _entries(value, "weights")]
    if len(weights) != len(parts):
        raise ValueError(f"{_shown(value)} has {len(parts)} values and {len(weights)} weights: give one for each")
    if sum(weights) == 0:
        raise ValueError(f"{_shown(value)} has no weight above 0: give each value its share")


def _entries(value: Mapping[str, Any], key: str) -> Sequence[Any]:
    entries = value[key]
    if isinstance(entries, str | bytes) or not isinstance(entries, Sequence) or not entries:
        raise ValueError(f"'{key}' is {_shown(entries)}: give a list with one entry or more")
    return entries


def _number(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        forms = ", ".join(form for form, _, _ in SHAPES.values())
        raise ValueError(  # noqa: TRY004 - pydantic reports a ValueError as a problem of the field
            f"{name} is {_shown(value)}, not a number: write a number, [low, high], {forms}"
        )
    if not math.isfinite(value) or value < 0:
        raise ValueError(f"{name} is {value}: give a finite number, 0 or more")
    return value


def _shown(value: Any) -> str:
    text = str(value) if isinstance(value, Mapping | Sequence) and not isinstance(value, str) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."

"""Every number of the performance model says how it is known; what is fitted comes out again."""

from __future__ import annotations

import msgspec
import pytest

from rollart.simulation.constants import CONSTANTS, Constants
from rollart.simulation.links import pull_seconds, push_seconds, transfer_seconds
from rollart.simulation.shapes import shape


def test_every_constant_is_in_its_range_and_says_where_it_is_from() -> None:
    assert set(CONSTANTS) == set(Constants.__struct_fields__)
    for name, constant in CONSTANTS.items():
        assert constant.low <= constant.value <= constant.high, name
        assert all((constant.unit, constant.source, constant.moves)), name
        if constant.basis == "fitted":
            assert any(figure in constant.source for figure in ("Figure 4", "section 3", "Table 3", "Table 4")), name


def test_constants_can_be_overridden_by_name() -> None:
    changed = Constants.with_overrides({"push_rate": 1e9})
    assert changed == msgspec.structs.replace(Constants(), push_rate=1e9)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"push_rat": 1e9}, "unknown constant 'push_rat': did you mean 'push_rate'"),
        ({"push_rate": 0.0}, "push_rate is 0.0 bytes/s: 4e\\+08 to 2.2e\\+09 is plausible"),
        ({"push_rate": 1e-300}, "push_rate is 1e-300"),
        ({"push_rate": float("nan")}, "push_rate is nan"),
    ],
)
def test_bad_overrides_are_refused(overrides: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Constants.with_overrides(overrides)


@pytest.mark.parametrize(
    ("seconds", "figure"),
    [
        (push_seconds(shape("qwen3-8b").weight_bytes, Constants()), 32.4),
        (pull_seconds(shape("qwen3-8b").weight_bytes, Constants()), 6.2),
        (transfer_seconds(shape("qwen3-8b").weight_bytes, "tcp", Constants()), 6.911),
        (transfer_seconds(shape("qwen3-8b").weight_bytes, "rdma", Constants()), 5.466),
        (transfer_seconds(shape("qwen3-32b").weight_bytes, "rdma", Constants()), 9.442),
    ],
)
def test_the_fitted_rates_give_the_figures_that_they_are_fitted_to(seconds: float, figure: float) -> None:
    assert seconds == pytest.approx(figure, rel=0.002)

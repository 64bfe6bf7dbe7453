"""The catalogue holds the paper's figures, and every class has stand-ins in a sensible order."""

from __future__ import annotations

import pytest

from rollart.resource_plane.hardware import CATALOGUE, LOCAL, Kind, hardware, stand_ins


def test_the_papers_two_classes() -> None:
    h800, h20 = hardware("H800"), hardware("H20")
    assert (h800.flops, h800.memory, h800.bandwidth, h800.cost) == (989.5e12, 80e9, 3.35e12, 2.85)
    assert (h20.flops, h20.memory, h20.bandwidth, h20.cost) == (148e12, 96e9, 4e12, 1.0)
    assert (h800.kind, h20.kind) == (Kind.COMPUTE, Kind.BANDWIDTH)


def test_every_figure_is_positive_and_has_a_source() -> None:
    for name, each in CATALOGUE.items():
        assert each.name == name
        assert min(each.flops, each.memory, each.bandwidth, each.cost) > 0
        assert len(each.sources.split(", ")) == 4


@pytest.mark.parametrize("wanted", CATALOGUE)
def test_stand_ins_are_others_and_never_serverless(wanted: str) -> None:
    order = stand_ins(wanted)
    assert wanted not in order
    assert "serverless" not in order
    assert set(order) == set(CATALOGUE) - {wanted, "serverless"}


def test_the_order_of_stand_ins() -> None:
    assert stand_ins("H800") == ("H100", "A100", "H200", "H20", "CPU")
    assert stand_ins("H20") == ("H200", "H800", "H100", "A100", "CPU")
    assert stand_ins("CPU")[0] == "H20"
    assert stand_ins("serverless")[0] == "CPU"
    assert stand_ins(LOCAL)[0] == "CPU"


@pytest.mark.parametrize(("name", "near"), [("h800", "H800"), ("H2O", "H20"), ("cpu", "CPU")])
def test_unknown_classes_name_the_nearest(name: str, near: str) -> None:
    with pytest.raises(ValueError, match=f"unknown hardware class '{name}': did you mean '{near}'"):
        hardware(name)
    with pytest.raises(ValueError, match="classes: H800"):
        hardware("quantum-9")

"""Declarations that make no sense are refused when the class is created, with the remedy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import rollart as ra
from rollart.data_plane.declarations import (
    DeclarationError,
    ExecuteAll,
    HardwareMapping,
    Serverless,
    declarations,
)

AFFINITY = {"frozen_lake": "H800", "default": "H20"}


class Generator(ra.ActorGen):
    @ra.hw_mapping(hw_affinity=AFFINITY)
    async def generate(self, request: str, *, tag_name: str = "default") -> str:
        return request

    @ra.register(mode="execute_all")
    def flush(self) -> None: ...


class Judge(ra.Reward):
    reward_proxy: Callable[..., Any]

    @ra.register_serverless(attribute="reward_proxy", serverless_url="fc://judge/score")
    async def score(self, trajectory: ra.Trajectory) -> ra.Score:
        score: ra.Score = await self.reward_proxy(trajectory)
        return score


def test_declarations_are_found_and_change_nothing() -> None:
    assert declarations(Generator) == {"generate": HardwareMapping(AFFINITY), "flush": ExecuteAll()}
    assert declarations(Judge) == {"score": Serverless("reward_proxy", "fc://judge/score")}
    assert Generator.flush(Generator()) is None


def test_an_override_keeps_the_declaration_or_brings_its_own() -> None:
    class Faster(Generator):
        async def generate(self, request: str, *, tag_name: str = "default") -> str:
            return request * 2

        @ra.hw_mapping(hw_affinity={"default": "CPU"})
        def flush(self, *, tag_name: str = "default") -> None: ...  # type: ignore[override]

    assert declarations(Faster) == {"generate": HardwareMapping(AFFINITY), "flush": HardwareMapping({"default": "CPU"})}


def test_the_roles_defaults() -> None:
    roles = (ra.ActorTrain, ra.ActorGen, ra.Environment, ra.Reward)
    assert [(role.role, role.hardware_affinity) for role in roles] == [
        ("train", "H800"),
        ("generate", "H20"),
        ("environment", "CPU"),
        ("reward", "local"),
    ]


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (lambda: ra.register(mode="broadcast"), "the only mode is 'execute_all'"),
        (lambda: ra.register(lambda self: None), r"write @register\(mode="),  # type: ignore[arg-type]
        (lambda: ra.hw_mapping(hw_affinity={"frozen_lake": "H800"}), "add the key 'default'"),
        (
            lambda: ra.hw_mapping(hw_affinity={"default": "H80"}),
            "domain 'default': unknown hardware class 'H80': did you",
        ),
        (lambda: ra.hw_mapping(lambda self: None), "needs its mapping"),  # type: ignore[arg-type]
        (lambda: ra.register_serverless("reward proxy", "fc://x"), "not the name of an attribute"),
        (lambda: ra.register_serverless("reward_proxy", "judge/score"), "a URL has a scheme"),
        (lambda: ra.register_serverless(lambda self: None, ""), "needs arguments"),  # type: ignore[arg-type]
        (lambda: ra.register(mode="execute_all")(3), "which is not a method"),  # type: ignore[type-var]
    ],
)
def test_bad_arguments_are_refused(declare: Callable[[], Any], message: str) -> None:
    with pytest.raises(DeclarationError, match=message):
        declare()


def without_tag_name() -> None:
    class Bad(ra.ActorGen):
        @ra.hw_mapping(hw_affinity=AFFINITY)
        def generate(self, request: str) -> str:
            return request


def without_default() -> None:
    class Bad(ra.ActorGen):
        @ra.hw_mapping(hw_affinity=AFFINITY)
        def generate(self, request: str, tag_name: str) -> str:
            return request


def private() -> None:
    class Bad(ra.ActorTrain):
        @ra.register(mode="execute_all")
        def _step(self) -> None: ...


def twice() -> None:
    class Bad(ra.ActorTrain):
        @ra.register(mode="execute_all")
        @ra.hw_mapping(hw_affinity=AFFINITY)
        def step(self, tag_name: str = "default") -> None: ...


def not_async() -> None:
    class Bad(ra.Reward):
        @ra.register_serverless(attribute="proxy", serverless_url="inline://m:f")
        def score(self) -> None: ...


def attribute_is_a_method() -> None:
    class Bad(ra.Reward):
        @ra.register_serverless(attribute="score", serverless_url="inline://m:f")
        async def score(self) -> None: ...


def two_urls() -> None:
    class Bad(ra.Reward):
        @ra.register_serverless(attribute="proxy", serverless_url="inline://m:f")
        async def score(self) -> None: ...

        @ra.register_serverless(attribute="proxy", serverless_url="inline://m:g")
        async def judge(self) -> None: ...


def no_method_any_more() -> None:
    class Bad(Generator):
        flush = None  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("define", "message"),
    [
        (without_tag_name, r"Bad.generate: .* add the parameter tag_name: str = 'default'"),
        (without_default, r"'tag_name' needs a default"),
        (private, r"Bad._step: a private method cannot be called"),
        (twice, r"Bad.step has two declarations \(@register and @hw_mapping\): keep one"),
        (not_async, r"Bad.score: .* write 'async def'"),
        (attribute_is_a_method, r"Bad.score: the attribute 'score' is a method of the class"),
        (two_urls, r"Bad.judge: the attribute 'proxy' has two URLs"),
        (no_method_any_more, r"Bad.flush: @register is inherited, but 'flush' is no method any more"),
    ],
)
def test_bad_classes_are_refused(define: Callable[[], None], message: str) -> None:
    with pytest.raises(DeclarationError, match=message):
        define()

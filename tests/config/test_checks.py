from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rollart.config.checks import meaningless_settings
from rollart.config.config import Config


def _config(**sections: Any) -> Config:
    domains = sections.pop("domains", {"lake": {"env": "frozen_lake"}, "math": {"env": "math_tool"}})
    return Config.model_validate({"domains": domains, **sections})


def test_the_defaults_make_sense() -> None:
    assert meaningless_settings(_config()) == []


def test_sync_mode_leaves_the_default_alpha_out_of_it() -> None:
    assert meaningless_settings(_config(run={"mode": "sync"})) == []
    assert meaningless_settings(_config(run={"mode": "sync", "alpha": 0})) == []


LAKE = {"env": "frozen_lake"}


@pytest.mark.parametrize(
    ("sections", "key", "remedy"),
    [
        ({"run": {"mode": "sync", "alpha": 2}}, "run.alpha", "set run.alpha to 0 or leave it out"),
        ({"run": {"alpha": 0, "update": "at_batch"}}, "run.update", "set run.update to 'eager'"),
        ({"run": {"mode": "sync", "update": "at_batch"}}, "run.update", "or run.alpha to 1 or more"),
        ({"run": {"mode": "sync_plus", "alpha": 1}}, "run.alpha", "run.mode 'sync_plus' trains at staleness 0"),
        ({"run": {"mode": "areal", "alpha": 0}}, "run.alpha", "or run.mode to 'sync_plus'"),
        ({"run": {"mode": "one_off", "alpha": 0, "update": "eager"}}, "run.alpha", "set run.alpha to 1 or more"),
        ({"domains": {"a b": LAKE}}, "domains.a b", "rename it"),
        (
            {"domains": {"lake": {**LAKE, "max_new_tokens": 512}}},
            "domains.lake.max_new_tokens",
            "lower max_new_tokens or raise max_context",
        ),
        ({"domains": {"lake": {**LAKE, "temperature": 0}}}, "domains.lake.temperature", "set it above 0"),
        (
            {"domains": {"lake": {**LAKE, "reward": {"function": "mine"}}}},
            "domains.lake.reward.function",
            "import path 'module:function'",
        ),
        (
            {"domains": {"lake": {**LAKE, "reward": {"url": "fc://x"}}}},
            "domains.lake.reward.url",
            "use 'inline://'",
        ),
        ({"rollout": {"groups_per_batch": 1}}, "rollout.groups_per_batch", "set it to 2 or more"),
        ({"rollout": {"max_environments": 7}}, "rollout.max_environments", "set it to 8 or more"),
        ({"rollout": {"hosts": 300}}, "rollout.hosts", "lower it"),
        ({"engine": {"device": "cpu", "dtype": "float16"}}, "engine.dtype", "use 'float32' or 'bfloat16'"),
        ({"engine": {"max_sessions": 8}}, "engine.max_sessions", "set it to 64 or more"),
        (
            {"engine": {"deterministic": True}, "rollout": {"redundant_members": 1}},
            "engine.deterministic",
            "set rollout.redundant_members and rollout.redundant_groups to 0",
        ),
        ({"training": {"minibatches": 17}}, "training.minibatches", "lower it"),
        ({"training": {"final_learning_rate": 1e-4}}, "training.final_learning_rate", "use 'linear' or 'cosine'"),
        (
            {"training": {"schedule": "linear", "final_learning_rate": 1.0}},
            "training.final_learning_rate",
            "lower it",
        ),
        ({"model": {"path": "./absent"}}, "model.path", "give a Hugging Face model folder or a hub id"),
        ({"model": {"tiny": {"kv_heads": 3}}}, "model.tiny.kv_heads", "choose a divisor"),
        ({"model": {"tiny": {"head_dim": 5}}}, "model.tiny.head_dim", "need an even number"),
        ({"model": {"rendering": "chat"}}, "model.rendering", "or use 'words'"),
        (
            {"domains": {"lake": {**LAKE, "max_context": 1024}}},
            "domains.lake.max_context",
            "raise model.tiny.max_length",
        ),
        ({"placement": {"train": "gpu"}}, "placement.train", "use one of: local"),
        ({"placement": {"reward": "gpu"}}, "placement.reward", "use one of: local"),
        ({"placement": {"generate": {"gpu": 2}}}, "placement.generate.gpu", "no pool 'gpu', use one of: local"),
        ({"placement": {"generate": {}}}, "placement.generate", "each pool needs 1 engine or more"),
        ({"placement": {"generate": {"local": 0}}}, "placement.generate", "leave out the pools without one"),
        ({"placement": {"generate": {"local": 2}}, "engine": {"count": 3}}, "engine.count", "leave it out"),
        ({"placement": {"affinity": {"lak": "CPU"}}}, "placement.affinity.lak", "one of: lake, math"),
        ({"evaluation": {"every": 5}}, "evaluation.every", "set evaluation.instances above 0"),
        ({"log": {"wandb": " "}}, "log.wandb", "give one, or leave it out"),
    ],
)
def test_meaningless_settings_are_named_with_their_remedy(sections: dict[str, Any], key: str, remedy: str) -> None:
    findings = dict(meaningless_settings(_config(**sections)))

    assert list(findings) == [key]
    assert remedy in findings[key]


def test_a_mode_without_staleness_behind_its_rollout_is_two_findings() -> None:
    """``one_off`` takes its weights at the batch, which alpha 0 does not allow either."""
    findings = meaningless_settings(_config(run={"mode": "one_off", "alpha": 0}))
    assert [key for key, _ in findings] == ["run.alpha", "run.update"]


def test_engines_counted_by_pool_may_be_counted_again() -> None:
    assert meaningless_settings(_config(placement={"generate": {"local": 2}}, engine={"count": 2})) == []


def test_a_folder_without_a_model(tmp_path: Path) -> None:
    ((key, what),) = meaningless_settings(_config(model={"path": str(tmp_path)}))

    assert key == "model.path"
    assert what == f"{tmp_path} has no config.json: give a Hugging Face model folder"


def test_a_hub_id_is_left_to_the_hub() -> None:
    assert meaningless_settings(_config(model={"path": "Qwen/Qwen3-0.6B"})) == []

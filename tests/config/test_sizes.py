from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rollart.config.algorithm import describe_algorithm
from rollart.config.config import Config
from rollart.config.model import ModelConfig
from rollart.config.sizes import derived_sizes, estimated_memory, model_shape


def _config(**sections: Any) -> Config:
    domains = {
        "lake": {"env": "frozen_lake", "weight": 3, "max_context": 100},
        "math": {"env": "math_tool", "weight": 1, "max_context": 300},
    }
    return Config.model_validate({"domains": domains, **sections})


def test_derived_sizes() -> None:
    rollout = {
        "groups_per_batch": 8,
        "group_size": 4,
        "redundant_members": 1,
        "redundant_groups": 2,
        "max_environments": 80,
        "hosts": 3,
    }
    sizes = derived_sizes(_config(rollout=rollout, run={"alpha": 1, "iterations": 10}))

    assert sizes.trajectories_per_batch == 32
    assert sizes.groups_by_domain == {"lake": 6.0, "math": 2.0}
    assert sizes.group_bound == (1 + 1) * 8 + 2
    assert sizes.trajectory_bound == 18 * 5
    assert (sizes.environments, sizes.environments_per_host) == (80, 27)
    assert sizes.total_trajectories == 320
    assert sizes.tokens_per_batch == 32 * (0.75 * 100 + 0.25 * 300)
    assert sizes.longest_context == 300


def test_synchronous_training_admits_one_batch() -> None:
    assert derived_sizes(_config(run={"mode": "sync"})).group_bound == 16


def test_the_shape_of_a_model_folder(tmp_path: Path) -> None:
    settings = {
        "hidden_size": 576,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "intermediate_size": 1536,
        "vocab_size": 49152,
        "tie_word_embeddings": True,
    }
    (tmp_path / "config.json").write_text(json.dumps(settings))

    shape = model_shape(ModelConfig(path=str(tmp_path)))

    assert shape is not None
    assert shape.head_dim == 64
    assert abs(shape.parameters - 134_515_008) < 0.001 * 134_515_008, "SmolLM2-135M"
    assert shape.kv_values == 2 * 30 * 3 * 64


def test_an_unknown_shape_gives_no_estimate(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert model_shape(ModelConfig(path=str(tmp_path))) is None
    assert model_shape(ModelConfig(path="owner/name")) is None


def test_the_memory_estimate_follows_what_costs_memory() -> None:
    shape = model_shape(ModelConfig())
    assert shape is not None
    small = estimated_memory(_config(), shape)
    half = estimated_memory(_config(engine={"dtype": "bfloat16"}), shape)
    more = estimated_memory(_config(rollout={"group_size": 16}), shape)

    assert half.engine * 2 == small.engine
    assert more.engine > small.engine
    assert small.total(2) == small.trainer + 2 * small.engine + small.store


def test_the_trainer_keeps_float32_whatever_it_computes_in() -> None:
    shape = model_shape(ModelConfig())
    assert shape is not None
    config = _config(training={"micro_batch_tokens": 1})
    single = estimated_memory(config, shape)
    half = estimated_memory(_config(training={"micro_batch_tokens": 1, "dtype": "bfloat16"}), shape)
    several = estimated_memory(_config(training={"micro_batch_tokens": 1, "minibatches": 2}), shape)

    assert single.trainer > 6 * 4 * shape.parameters, "weights, gradients, two moments, two snapshots"
    assert half.trainer > single.trainer, "autocast adds a copy"
    assert half.store == single.store == 2 * 4 * shape.parameters
    assert several.trainer - single.trainer == 2 * 4 * shape.parameters, "the moments to go back to"


def test_the_algorithm_in_words() -> None:
    text = describe_algorithm(_config(training={"schedule": "linear", "entropy_bonus": 0.01, "warmup": 5}))
    assert "mean of its group of 8, divided by the group's standard deviation" in text
    assert "ratio to the behaviour policy is clipped to [0.8, 1.28]" in text
    assert "truncated at 2" in text
    assert "AdamW at 0.001 (linear to 0, 5 iterations of warm-up)" in text
    assert "at most 1 version before" in text
    assert "Synchronous (alpha 0)" in describe_algorithm(_config(run={"mode": "sync"}))
    own = describe_algorithm(_config(training={"algorithm": "my:fn", "minibatches": 2}))
    assert own.startswith("The advantage is what my:fn makes of a group of 8. The ratio to the proximal policy")
    assert "GRPO" not in own

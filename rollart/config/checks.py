"""Settings that are valid one by one and meaningless together, each with its remedy.

The loader refuses them before anything starts; ``rollart plan`` is how a user asks. Each check looks at
a validated configuration and yields ``(dotted key, what is wrong and what to do)``. Beyond the
configuration itself only the existence of a local model folder is looked at.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from rollart.config.config import Config
from rollart.config.modes import PRESETS
from rollart.config.simulation import SimulatedConfig

Finding = tuple[str, str]


def meaningless_settings(config: Config) -> list[Finding]:
    """All findings, in the order of the sections."""
    checks = (_staleness, _domains, _rollout, _engine, _training, _model, _placement, _evaluation, _log)
    return [finding for check in checks for finding in check(config)]


def _staleness(config: Config) -> Iterator[Finding]:
    run, switches = config.run, config.switches
    if PRESETS[run.mode].alpha == 0 and switches.alpha != 0:
        yield (
            "run.alpha",
            f"is {run.alpha}, but run.mode '{run.mode}' trains at staleness 0: set run.alpha to 0 or leave it out",
        )
    if PRESETS[run.mode].alpha != 0 and switches.alpha == 0 and run.mode != "rollart":
        yield (
            "run.alpha",
            f"is 0, but run.mode '{run.mode}' trains behind its rollout: set run.alpha to 1 or more, or run.mode to "
            "'sync_plus'",
        )
    if switches.update == "at_batch" and switches.alpha == 0:
        yield (
            "run.update",
            "'at_batch' waits for a full batch before engines take new weights, and with alpha 0 that batch "
            "needs the new weights first: set run.update to 'eager', or run.alpha to 1 or more",
        )


def _domains(config: Config) -> Iterator[Finding]:
    for name, domain in config.domains.items():
        key = f"domains.{name}"
        if not _is_name(name):
            yield key, "a domain's name must be made of letters, digits, '_', '-' and '.': rename it"
        if domain.max_new_tokens >= domain.max_context:
            yield (
                f"{key}.max_new_tokens",
                f"is {domain.max_new_tokens}, which leaves no room for a prompt in max_context {domain.max_context}: "
                "lower max_new_tokens or raise max_context",
            )
        if domain.temperature == 0:
            yield (
                f"{key}.temperature",
                "is 0 (greedy), so all members of a group act alike and nothing is learned: set it above 0 "
                "(evaluation.greedy makes evaluation greedy)",
            )
        if domain.reward.function != "environment" and ":" not in domain.reward.function:
            yield f"{key}.reward.function", "must be 'environment' or an import path 'module:function'"
        if domain.reward.url != "inline://":
            yield f"{key}.reward.url", f"'{domain.reward.url}' has no provider here: use 'inline://'"


def _is_name(name: str) -> bool:
    return bool(name) and name.replace("_", "a").replace("-", "a").replace(".", "a").isalnum()


def _rollout(config: Config) -> Iterator[Finding]:
    rollout = config.rollout
    if rollout.groups_per_batch < len(config.domains):
        yield (
            "rollout.groups_per_batch",
            f"is {rollout.groups_per_batch}, fewer than the {len(config.domains)} domains, so no batch can hold all of "
            f"them: set it to {len(config.domains)} or more",
        )
    members = rollout.group_size + rollout.redundant_members
    if rollout.max_environments < members:
        yield (
            "rollout.max_environments",
            f"is {rollout.max_environments}, but one group starts {members} environments at once: set it to "
            f"{members} or more",
        )
    if rollout.hosts > rollout.max_environments:
        yield (
            "rollout.hosts",
            f"is {rollout.hosts}, more than the {rollout.max_environments} environments they share: lower it",
        )


def _engine(config: Config) -> Iterator[Finding]:
    engine = config.engine
    if engine.device == "cpu" and engine.dtype == "float16":
        yield "engine.dtype", "'float16' is not supported on a CPU: use 'float32' or 'bfloat16'"
    if engine.max_sessions < engine.max_rows:
        yield (
            "engine.max_sessions",
            f"is {engine.max_sessions}, fewer than the {engine.max_rows} requests of max_rows that decode together: "
            f"set it to {engine.max_rows} or more",
        )
    if engine.deterministic and config.rollout.redundant_members + config.rollout.redundant_groups:
        yield (
            "engine.deterministic",
            "which members of a redundant group finish first depends on timing: set rollout.redundant_members and "
            "rollout.redundant_groups to 0, or engine.deterministic to false",
        )


def _training(config: Config) -> Iterator[Finding]:
    training = config.training
    if config.rollout.groups_per_batch < training.minibatches:
        yield (
            "training.minibatches",
            f"is {training.minibatches}, more than the {config.rollout.groups_per_batch} groups of a batch: lower it",
        )
    if training.schedule == "constant" and training.final_learning_rate > 0:
        yield "training.final_learning_rate", "has no effect with schedule 'constant': use 'linear' or 'cosine'"
    if training.final_learning_rate > training.learning_rate:
        yield "training.final_learning_rate", f"is above learning_rate {training.learning_rate}: lower it"


def _model(config: Config) -> Iterator[Finding]:
    if isinstance(config, SimulatedConfig):
        return  # simulation.model is what it trains
    model = config.model
    if model.path is None:
        yield from _tiny_model(config)
        return
    if looks_local(model.path):
        folder = Path(model.path).expanduser()
        if not folder.is_dir():
            yield "model.path", f"no such folder: {folder} (give a Hugging Face model folder or a hub id)"
        elif not (folder / "config.json").is_file():
            yield "model.path", f"{folder} has no config.json: give a Hugging Face model folder"


def _tiny_model(config: Config) -> Iterator[Finding]:
    tiny = config.model.tiny
    if tiny.heads % tiny.kv_heads:
        yield "model.tiny.kv_heads", f"is {tiny.kv_heads}, which does not divide heads {tiny.heads}: choose a divisor"
    if tiny.head_dim % 2:
        yield "model.tiny.head_dim", f"is {tiny.head_dim}: rotary positions need an even number"
    if config.model.rendering == "chat":
        yield "model.rendering", "'chat' needs a tokenizer with a chat template: set model.path, or use 'words'"
    for name, domain in config.domains.items():
        if domain.max_context > tiny.max_length:
            yield (
                f"domains.{name}.max_context",
                f"is {domain.max_context}, more than model.tiny.max_length {tiny.max_length}: lower it, or raise "
                "model.tiny.max_length",
            )


def looks_local(path: str) -> bool:
    """Whether a model path names a folder of this machine rather than a hub id (``owner/name``)."""
    return path.startswith((".", "/", "~", os.sep)) or path.count("/") > 1 or "\\" in path or Path(path).exists()


def _placement(config: Config) -> Iterator[Finding]:
    names = ", ".join(config.pools)
    placed = config.placement
    wanted = {role: getattr(placed, role) for role in ("train", "generate", "environment", "reward")}
    if isinstance(placed.generate, dict | list):
        wanted |= {"generate": None} | {f"generate.{pool}": pool for pool in placed.generate}
    for role, pool in wanted.items():
        if pool is not None and pool not in config.pools:
            yield f"placement.{role}", f"no pool '{pool}', use one of: {names}"
    if (engines := config.engines_by_pool) is not None:
        if not engines or any(count < 1 for count in engines.values()):
            yield (
                "placement.generate",
                f"each pool needs 1 engine or more, of engine.devices {config.engine.devices} devices: leave out the "
                "pools without one",
            )
        elif "count" in config.engine.model_fields_set and config.engine.count != config.engines:
            yield (
                "engine.count",
                f"is {config.engine.count}, but placement.generate has {config.engines} engines: leave it out",
            )
    if isinstance(placed.generate, list) and len(set(placed.generate)) < len(placed.generate):
        yield "placement.generate", "names a pool twice: name each once"
    generating = set(config.engines_by_pool or ())
    for pool in placed.prefill:
        if pool not in generating:
            yield "placement.prefill", f"'{pool}' is none of the pools that placement.generate lists: add it there"
    if placed.prefill and generating and generating <= set(placed.prefill):
        yield "placement.prefill", "leaves no pool that decodes: add one to placement.generate alone"
    for domain in config.placement.affinity:
        if domain != "default" and domain not in config.domains:
            yield (
                f"placement.affinity.{domain}",
                f"no domain '{domain}', use 'default' or one of: {', '.join(config.domains)}",
            )


def _evaluation(config: Config) -> Iterator[Finding]:
    evaluation = config.evaluation
    if evaluation.instances == 0 and evaluation.every:
        yield "evaluation.every", "has no effect without held-out instances: set evaluation.instances above 0"


def _log(config: Config) -> Iterator[Finding]:
    if config.log.wandb is not None and not config.log.wandb.strip():
        yield "log.wandb", "names no project: give one, or leave it out"

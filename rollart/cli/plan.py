"""``rollart plan``: what a configuration would run, without starting anything and without torch or ray.

With ``--optimize`` it searches for better settings (:mod:`rollart.cli.optimize`).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from rollart.cli.arguments import Commands, add_config, command_parser
from rollart.cli.errors import OK
from rollart.cli.inputs import load_checked
from rollart.cli.optimize import add_optimize, refuse_unused, run_optimize
from rollart.config.config import Config

_DETAILS = """\
Shows where each role would run, the sizes that follow from the settings, an estimate of the memory, and the
effective algorithm. Settings that make no sense are refused with the remedy.

With --optimize it searches instead, by simulation, for the split of the GPUs between training and generation, the
hardware class of each domain, the staleness bound and the redundancy that give the shortest step or the cheapest
tokens, and says what to expect of the best few. The workload is that of the file's section `simulation`, or that of a
finished run."""


def add_parser(commands: Commands) -> None:
    parser = command_parser(commands, "plan", "show what would run, without running it", _DETAILS)
    add_config(parser)
    add_optimize(parser)
    parser.set_defaults(command=run)


def run(parsed: argparse.Namespace) -> int:
    """Print the plan, or search for a better one."""
    if parsed.optimize:
        return run_optimize(parsed)
    refuse_unused(parsed)
    for line in plan_lines(load_checked(parsed)):
        print(line)
    return OK


def plan_lines(config: Config) -> Iterator[str]:
    """The plan of a checked configuration."""
    run = config.run
    limit = f", at most {run.max_train_seconds:g} s of training" if run.max_train_seconds else ""
    yield f"run        {run.name} in {run.dir}/{run.name}: {run.iterations} iterations{limit}, seed {run.seed}"
    yield f"mode       {run.mode}, alpha {config.alpha}, update {config.switches.update}, on {_RUNTIMES[run.runtime]}"
    yield from _section("roles", _roles(config))
    yield from _section("domains", _domains(config))
    yield from _section("sizes", _sizes(config))
    yield from _section("memory", _memory(config))
    yield from _section("algorithm", _sentences(config))


def _roles(config: Config) -> Iterator[str]:
    """Every worker with the pool and device it is bound to, rewards with their provider; a fallback says why."""
    from rollart.cli.inputs import bindings_of

    providers = ", ".join(sorted({domain.reward.url for domain in config.domains.values()}))
    for binding in bindings_of(config):
        if binding.role == "reward":
            devices = f"{providers} inside the environment hosts"
        else:
            devices = f"device{'s' if len(binding.devices) > 1 else ''} {', '.join(map(str, binding.devices))}"
        fallback = f"  (wanted {binding.wanted}: {binding.fallback})" if binding.fallback else ""
        yield f"{binding.worker:<14} {binding.pool} ({binding.hardware_class}), {devices}{fallback}"
    for name, pool in config.pools.items():
        kind = "a share of this machine" if pool.logical else "devices of the cluster"
        yield f"pool {name:<9} {pool.devices} x {pool.hardware}, {kind}"


_RUNTIMES = {"ray": "Ray", "in_process": "this process alone"}


def _section(title: str, lines: Iterator[str]) -> Iterator[str]:
    yield ""
    yield title
    for line in lines:
        yield f"  {line}"


def _domains(config: Config) -> Iterator[str]:
    from rollart.data_plane.environment.registry import default_isolation

    width = max(len(name) for name in config.domains)
    for name, domain in config.domains.items():
        where = domain.isolation or default_isolation(domain.env, domain.args)
        yield (
            f"{name:<{width}}  {config.shares[name]:.1%} of the trained groups, env {domain.env} ({where}), "
            f"up to {domain.max_turns} turns of {domain.max_new_tokens} tokens in {domain.max_context}, "
            f"temperature {domain.temperature:g}, truncated: {domain.truncated}"
        )


def _sizes(config: Config) -> Iterator[str]:
    from rollart.config.sizes import derived_sizes

    rollout, sizes = config.rollout, derived_sizes(config)
    mix = ", ".join(f"{name} {groups:.2f}" for name, groups in sizes.groups_by_domain.items())
    yield (
        f"batch          {sizes.trajectories_per_batch} trajectories = {rollout.groups_per_batch} groups of "
        f"{rollout.group_size}; groups a batch: {mix}"
    )
    extra = f" + {rollout.redundant_groups} redundant" if rollout.redundant_groups else ""
    yield (
        f"admission      at most {sizes.group_bound} groups live = (alpha {config.alpha} + 1) * "
        f"{rollout.groups_per_batch}{extra}, {sizes.trajectory_bound} trajectories"
    )
    limited = ", limited by rollout.max_environments" if sizes.environments < sizes.trajectory_bound else ""
    yield (
        f"environments   at most {sizes.environments} alive{limited}, {sizes.environments_per_host} on each of "
        f"{rollout.hosts} hosts"
    )
    yield f"tokens         at most {sizes.tokens_per_batch:,} a batch, {config.training.micro_batch_tokens:,} a pass"
    yield f"whole run      {sizes.total_trajectories:,} trained trajectories"
    if config.evaluation.instances:
        each = config.evaluation.instances * len(config.domains)
        when = f"every {config.evaluation.every} iterations, " if config.evaluation.every else ""
        yield f"evaluation     {each} held-out instances, {when}at the start and the end"


def _memory(config: Config) -> Iterator[str]:
    from rollart.config.sizes import TINY_VOCABULARY, estimated_memory, model_shape

    shape = model_shape(config.model)
    if shape is None:
        yield f"unknown: {config.model.path} is not a local folder with a known configuration"
        return
    memory, engines = estimated_memory(config, shape), config.engines
    assumed = f" (with a vocabulary of {TINY_VOCABULARY})" if config.model.path is None else ""
    yield f"model          {shape.parameters:,} parameters{assumed}"
    yield f"trainer        about {_bytes(memory.trainer)}: weights, gradients, AdamW, snapshots, one pass's activations"
    yield f"engine         about {_bytes(memory.engine)} each, {engines} of them: weights, KV cache"
    yield f"weight store   about {_bytes(memory.store)}: two versions"
    yield f"together       about {_bytes(memory.total(engines))}, besides 0.5 GB of libraries for each process"


def _bytes(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e8 else f"{count / 1e6:.1f} MB"


def _sentences(config: Config) -> Iterator[str]:
    from rollart.config.algorithm import describe_algorithm

    for sentence in describe_algorithm(config).split(". "):
        yield f"{sentence.rstrip('.')}."

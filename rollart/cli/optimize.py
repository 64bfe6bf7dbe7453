"""``rollart plan --optimize``: search for better settings by simulation, and say what to expect of them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollart.cli.errors import OK, RunFailed, UserError
from rollart.cli.run_folder import existing_run_folder
from rollart.cli.simulate import check_json, data_of, experiment_of, pairs, plain, settings_of, write_json
from rollart.cli.stopping import terminable

if TYPE_CHECKING:
    from rollart.config.config import Config
    from rollart.simulation.proposals import Plan, Proposal, Spread

BUDGET_MINUTES = 9.0
"""By default: 128 GPUs and four domains are planned within ten minutes on one core."""

_OPTIONS = ("objective", "budget", "simulations", "max_alpha", "jobs", "workload", "model", "only", "json")


def add_optimize(parser: argparse.ArgumentParser) -> None:
    """The options of the search."""
    group = parser.add_argument_group("search for better settings")
    group.add_argument("--optimize", action="store_true", help="search; CONFIG.yaml may be an experiment, see --only")
    group.add_argument("--objective", choices=("time", "cost"), help="step time (default), or cost of a trained token")
    group.add_argument(
        "--budget", type=float, metavar="MINUTES", help=f"wall time of the search (default {BUDGET_MINUTES:g})"
    )
    group.add_argument(
        "--simulations", type=int, metavar="N", help="most simulations; without --budget the same result everywhere"
    )
    group.add_argument("--max-alpha", type=int, metavar="N", help="largest staleness bound to propose (default 2)")
    group.add_argument("--jobs", type=int, metavar="N", help="processes (default 1)")
    group.add_argument("--workload", type=Path, metavar="RUN", help="take the workload of this finished run")
    group.add_argument("--model", metavar="NAME", help="shape of the trained model instead of simulation.model")
    group.add_argument("--only", action="append", metavar="FACTOR:POINT", help="the point of an experiment to plan for")
    group.add_argument("--json", type=Path, metavar="FILE", help="also write the proposals to FILE")


def refuse_unused(parsed: argparse.Namespace) -> None:
    """Refuse the options of the search without ``--optimize``."""
    for name in _OPTIONS:
        if getattr(parsed, name) is not None:
            raise UserError(f"--{name.replace('_', '-')} belongs to a search: add --optimize")


def run_optimize(parsed: argparse.Namespace) -> int:
    """Search, and print the given configuration and the proposals."""
    from rollart.simulation.candidates import MOST_ALPHA
    from rollart.simulation.optimizer import optimize

    budget, jobs = _budget(parsed), 1 if parsed.jobs is None else parsed.jobs
    most_alpha = MOST_ALPHA if parsed.max_alpha is None else parsed.max_alpha
    if jobs < 1 or most_alpha < 0:
        raise UserError("--jobs takes a number of 1 or more, --max-alpha one of 0 or more")
    check_json(parsed.json)
    base, settings = _inputs(parsed)
    try:
        with terminable():
            plan = optimize(base, settings, parsed.objective or "time", budget, most_alpha, jobs, _tell)
    except ValueError as error:
        raise UserError(f"{parsed.config}: {error}") from error
    except RuntimeError as error:
        raise RunFailed(f"{parsed.config}: {error}") from error
    for line in _table(plan):
        print(line)
    if parsed.json is not None:
        write_json(parsed.json, plain(plan))
    return OK


def _budget(parsed: argparse.Namespace) -> Any:
    from rollart.simulation.optimizer import Budget

    if parsed.budget is not None and not parsed.budget > 0:
        raise UserError(f"--budget {parsed.budget:g}: give minutes, more than 0")
    default = {} if parsed.simulations is not None else {"seconds": 60 * BUDGET_MINUTES}
    given = {} if parsed.budget is None else {"seconds": 60 * parsed.budget}
    count = {} if parsed.simulations is None else {"simulations": parsed.simulations}
    return Budget(**(default | given | count))


def _inputs(parsed: argparse.Namespace) -> tuple[dict[str, Any], dict[str, Any]]:
    """What to plan for, as plain data and settings by dotted key."""
    from rollart.config.load import simulated_config
    from rollart.simulation.experiments import experiment_file

    try:
        path = experiment_file(str(parsed.config))
        data, settings = data_of(path), settings_of(parsed.overrides)
        config: Config
        if "base" in data:
            data, settings = _point_of(path, parsed.only or [], settings)
            config = simulated_config(data, settings)
        elif parsed.only:
            raise UserError(f"--only {parsed.only[0]}: {path} is not an experiment: leave it out")
        else:
            config = _loaded(path, data, parsed)
    except (ValueError, OSError) as error:
        raise UserError(str(error)) from error
    if parsed.workload is not None:
        data = {key: value for key, value in data.items() if key != "domains"}
        settings["simulation.workloads"] = _measured(parsed.workload, config)
    if parsed.model is not None:
        settings["simulation.model"] = parsed.model
    return data, settings


def _loaded(path: Path, data: dict[str, Any], parsed: argparse.Namespace) -> Config:
    """The configuration by the loader, which names what is wrong with file and line."""
    from rollart.config.load import load_config, load_simulation
    from rollart.simulation.shapes import SHAPES

    if "simulation" in data:
        return load_simulation(path, parsed.overrides)
    config = load_config(path, parsed.overrides)
    if parsed.workload is None:
        raise UserError(
            f"{path}: has no section 'simulation', so there is no workload to plan for: add one "
            "(docs/simulation.md), or name a finished run: --workload runs/NAME"
        )
    if parsed.model is None:
        raise UserError(f"{path}: name the shape of its model: --model {'|'.join(SHAPES)}")
    return config


def _point_of(path: Path, only: list[str], settings: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    from rollart.simulation.experiments import points

    experiment = experiment_of(path)
    chosen = points(experiment, dict(pairs(only)), settings)
    if len(chosen) > 1:
        factors = ", ".join(f"{axis.factor}:{'|'.join(axis.points)}" for axis in experiment.vary)
        raise UserError(f"{path} has {len(chosen)} points: choose one with --only FACTOR:POINT ({factors})")
    return experiment.base, chosen[0].settings


def _measured(run: Path, config: Config) -> dict[str, Any]:
    """The workloads that the log of a run shows, in the shares that the configuration wants."""
    from rollart.simulation.workloads import LogError, workload_from_log

    folder = existing_run_folder(run)
    try:
        measured = workload_from_log(folder)
    except LogError as error:
        raise UserError(f"--workload {error}") from error
    for name in config.domains:
        if name not in measured:
            raise UserError(f"--workload {folder}: the run had no domain '{name}' (it had: {', '.join(measured)})")
    return {name: measured[name].model_dump() | {"weight": domain.weight} for name, domain in config.domains.items()}


def _tell(line: str) -> None:
    print(line if len(line) <= 150 else f"{line[:147]}...", file=sys.stderr, flush=True)


def _table(plan: Plan) -> Iterator[str]:
    what = "step time at equal work" if plan.objective == "time" else "cost of trained tokens"
    ended = "nothing promising was left" if plan.settled else "the budget was used"
    yield (
        f"{plan.screened:,} candidates estimated, {plan.simulations} simulations, {ended}; least {what}; means and "
        f"standard deviations over seeds {', '.join(map(str, plan.seeds))}"
    )
    yield (
        f"{'':<8} {'step s':>16} {'at equal work s':>16} {'cost/M tokens':>14} {'wasted':>8} {'idle':>8} "
        f"{'better by':>15}"
    )
    yield _row("given", plan.given)
    for number, proposal in enumerate(plan.proposals, 1):
        yield _row(str(number), proposal)
        yield f"         {_settings(proposal)}"


def _row(name: str, proposal: Proposal) -> str:
    return (
        f"{name:<8} {_spread(proposal.step_time_s):>16} {_spread(proposal.comparable_step_s):>16} "
        f"{proposal.cost_per_million_tokens.mean:>14.3g} {proposal.wasted_token_share.mean:>8.1%} "
        f"{proposal.idle_share.mean:>8.1%} {proposal.gain.mean:>8.1%} ± {proposal.gain.std:.1%}"
    )


def _spread(spread: Spread) -> str:
    return f"{spread.mean:.1f} ± {spread.std:.1f}"


def _settings(proposal: Proposal) -> str:
    from rollart.simulation.proposals import overrides

    return overrides(proposal.settings) or "the given settings"

"""``rollart check-env``: plays an environment without a model, and checks what training relies on."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rollart.cli.arguments import Commands, command_parser
from rollart.cli.errors import FAILED, OK, UserError

if TYPE_CHECKING:
    from rollart.config.domains import DomainConfig

_DETAILS = """\
NAME is a registered environment or 'module:factory'; with --config it is a domain of that configuration.
Without NAME it lists the registered ones. Checks that the environment starts, that equal seeds give equal
instances, and that it takes actions; code 1 if it does not.

Policies: 'random' plays uniformly random valid actions, 'scripted' the ones given with --action in their order,
'human' asks on the terminal."""


def add_parser(commands: Commands) -> None:
    parser = command_parser(commands, "check-env", "play an environment without a model", _DETAILS)
    parser.add_argument("name", nargs="?", metavar="NAME", help="environment, or domain with --config")
    parser.add_argument("--config", type=Path, metavar="CONFIG.yaml", help="take the domain's settings from here")
    parser.add_argument("--policy", choices=("random", "scripted", "human"), default="random")
    parser.add_argument("--action", action="append", default=[], metavar="TEXT", help="next action of 'scripted'")
    parser.add_argument("--episodes", type=_positive, default=3, metavar="N", help="instances to play (default 3)")
    parser.add_argument("--show", type=int, default=1, metavar="N", help="print the turns of the first N (default 1)")
    parser.add_argument("--seed", type=int, default=0, help="root seed of the instances (default 0)")
    parser.add_argument("--held-out", action="store_true", help="play held-out instances instead of training ones")
    parser.add_argument(
        "--arg", action="append", default=[], metavar="KEY=VALUE", help="argument of the environment, typed as in YAML"
    )
    parser.set_defaults(command=run)


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return value


def run(parsed: argparse.Namespace) -> int:
    """List the environments, or play one."""
    if parsed.name is None:
        return _list()
    if parsed.policy == "scripted" and not parsed.action:
        raise UserError("--policy scripted: has no actions: give them in order, e.g. --action right --action down")
    if parsed.policy == "human" and not sys.stdin.isatty():
        raise UserError("--policy human: needs a terminal to ask on: use --policy scripted --action ...")
    import asyncio

    from rollart.cli.play import Playground

    domain = _domain(parsed)
    playground = Playground(domain, parsed.seed, parsed.held_out, parsed.policy, parsed.action)
    problems = asyncio.run(playground.play(parsed.episodes, parsed.show))
    for problem in problems:
        print(f"rollart: {parsed.name}: {problem}", file=sys.stderr)
    return FAILED if problems else OK


def _list() -> int:
    from rollart.data_plane.environment.registry import DESCRIPTIONS, ENVIRONMENTS

    for name in ENVIRONMENTS:
        print(f"{name:<16} {DESCRIPTIONS.get(name, '')}".rstrip())
    print(f"{'module:factory':<16} your own, by import path")
    return OK


def _domain(parsed: argparse.Namespace) -> DomainConfig:
    """The settings to play with, from the configuration or from ``--arg``."""
    from rollart.cli.inputs import add_import_paths
    from rollart.config.domains import DomainConfig
    from rollart.config.load import load_config
    from rollart.config.yaml_file import parse_value
    from rollart.data_plane.environment.registry import check_domain

    add_import_paths(parsed.config)
    args = {}
    for text in parsed.arg:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise UserError(f"--arg {text}: write it as KEY=VALUE, e.g. --arg size=4")
        args[key] = parse_value(value, f"--arg {text}")
    if parsed.config is None:
        domain = DomainConfig(env=parsed.name, args=args)
    else:
        domains = load_config(parsed.config).domains
        if parsed.name not in domains:
            raise UserError(f"{parsed.config}: no domain '{parsed.name}': use one of {', '.join(domains)}")
        domain = domains[parsed.name].model_copy(update={"args": {**domains[parsed.name].args, **args}})
    try:
        check_domain(domain)
    except ValueError as error:
        raise UserError(str(error)) from error
    return domain

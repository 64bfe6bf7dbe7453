"""The workloads that a configuration can name, each value with where it comes from.

The RollArt paper (OSDI'26) describes its task families by turns and character and gives few numbers, so each value
says how it is known:

* ``given``: the paper states it;
* ``fitted``: chosen so that the workload reproduces the figure named, which the paper gives about the workload;
* ``assumed``: ours, consistent with what the paper says of the family. Overriding it shows how much hangs on it.

No value is fitted to the outcome of one of the paper's experiments. The page on workloads is generated from this
table.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

Basis = Literal["given", "fitted", "assumed"]


class Known(NamedTuple):
    """A value of a workload's field, and how it is known."""

    value: Any
    basis: Basis
    source: str


_TABLE_1 = "paper, Table 1: turns of the task family; uniform in between"
_CONTEXT = Known(32768, "given", "paper, evaluation: context of the main runs")
_ONE_CALL = Known(
    {"median": 0.012, "sigma": 1.0, "max": 1.4},
    "given",
    "paper, evaluation: a call of an environment costs 0.02 s on average, 1.4 s at most; the game's own time is less",
)
_RULE = Known(0.01, "assumed", "a rule-based check of the final state")
_JUDGE = Known(
    {"median": 1.5, "sigma": 0.5, "max": 30.0},
    "assumed",
    "a 7B judge (the kind is the paper's, section 7) that reads the trajectory and writes about a hundred tokens",
)
_PREFILL = "prefill-heavy (paper, Table 1): long observations, short actions; fits 32k at the most turns"
_DECODE = "decode-heavy (paper, Table 1): reasoning in every action; fits 32k at the most turns"
_HALF = Known(0.5, "assumed", "groups with unequal rewards, as tasks worth training on have them")
_RARE = Known(1e-4, "given", "paper, section 8: more than 99.99 % of the initialisations succeed")


WORKLOADS: dict[str, dict[str, Known]] = {
    "swe_bench": {
        "turns": Known([30, 50], "given", _TABLE_1),
        "first_observation": Known({"median": 2500, "sigma": 0.4, "max": 6000}, "assumed", "tools and an issue"),
        "observation": Known({"median": 210, "sigma": 0.8, "max": 3000}, "assumed", _PREFILL),
        "action": Known(
            {"median": 194, "sigma": 0.6, "max": 1500},
            "fitted",
            "paper, section 3: a clean iteration of 128 trajectories on 32 H800 takes 365.7 s, spread assumed",
        ),
        "reset_seconds": Known(
            {"median": 10.9, "sigma": 0.6, "max": 300.0},
            "fitted",
            "paper, section 3: env.reset is 14.6 % of a clean iteration of 365.7 s; read as the slowest of its 128 "
            "resets, spread assumed",
        ),
        "step_seconds": Known(
            {"median": 0.4, "sigma": 1.0, "max": 60.0},
            "fitted",
            "paper, section 3: env.step and reward are 8.5 % of a clean iteration of 365.7 s; read as 40 mean steps "
            "and a reward, spread assumed",
        ),
        "reset_slow": Known(
            {"probability": 0.1, "share": 0.5, "seconds": {"median": 60.0, "sigma": 0.7, "max": 900.0}},
            "assumed",
            "paper, section 3: about one iteration in ten has failing resets, and their tail reaches hundreds of "
            "seconds. Assumed: half the environments, a 99th percentile of 300 s",
        ),
        "reset_error": _RARE,
        "reward_seconds": Known({"median": 4.0, "sigma": 0.6, "max": 120.0}, "assumed", "a run of the issue's tests"),
        "success": Known(0.3, "assumed", "a hard family: the paper trains it with its largest model only"),
        "max_context": _CONTEXT,
    },
    "webshop": {
        "turns": Known([5, 30], "given", _TABLE_1),
        "first_observation": Known({"median": 1200, "sigma": 0.3, "max": 3000}, "assumed", "instruction and a page"),
        "observation": Known({"median": 700, "sigma": 0.5, "max": 3000}, "assumed", _PREFILL),
        "action": Known({"median": 65, "sigma": 0.6, "max": 512}, "assumed", _PREFILL),
        "reset_seconds": Known({"median": 0.5, "sigma": 0.5, "max": 10.0}, "assumed", "a session with a running shop"),
        "step_seconds": Known({"median": 0.2, "sigma": 0.6, "max": 5.0}, "assumed", "a search or a page"),
        "reward_seconds": _RULE,
        "success": Known(0.4, "assumed", _HALF.source),
        "max_context": _CONTEXT,
    },
    "frozen_lake": {
        "turns": Known(
            {"values": [[20, 40], [40, 100]], "weights": [0.75, 0.25]},
            "given",
            "paper, Table 1: 20 to 100 turns. Assumed: most games end early, uniform in either part",
        ),
        "first_observation": Known(800, "assumed", "rules and the first state"),
        "observation": Known(
            [130, 160],
            "fitted",
            f"paper, Figure 4: rollout on 2 H800 takes down to 0.53 of that on 6 H20. A state as text; {_PREFILL}",
        ),
        "action": Known(
            {"median": 8, "sigma": 0.5, "max": 64}, "fitted", "paper, Figure 4, as the observation: a move"
        ),
        "reset_seconds": _ONE_CALL,
        "step_seconds": _ONE_CALL,
        "reward_seconds": _RULE,
        "success": _HALF,
        "max_context": _CONTEXT,
    },
    "gem_math": {
        "turns": Known([1, 4], "given", "paper, Table 1: fewer than 5 turns; uniform in between"),
        "first_observation": Known({"median": 250, "sigma": 0.4, "max": 600}, "assumed", "a problem and the tool"),
        "observation": Known({"median": 100, "sigma": 0.5, "max": 400}, "assumed", "what a tool printed"),
        "action": Known({"median": 2600, "sigma": 0.7, "max": 7600}, "assumed", _DECODE),
        "reset_seconds": _ONE_CALL,
        "step_seconds": Known({"median": 0.5, "sigma": 0.8, "max": 20.0}, "assumed", "a program run by the tool"),
        "reward_seconds": _JUDGE,
        "success": _HALF,
        "max_context": _CONTEXT,
    },
    "gem_game": {
        "turns": Known(1, "given", "paper, Table 1: one turn"),
        "first_observation": Known({"median": 400, "sigma": 0.3, "max": 1000}, "assumed", "a game's rules and state"),
        "observation": Known(16, "assumed", "the verdict"),
        "action": Known({"median": 2500, "sigma": 0.8, "max": 16384}, "assumed", _DECODE),
        "reset_seconds": _ONE_CALL,
        "step_seconds": _ONE_CALL,
        "reward_seconds": _RULE,
        "success": _HALF,
        "max_context": _CONTEXT,
    },
}


_ONE_OF_EIGHT = "paper, section 8: mean turns of its tasks T1-T8 lie between 1 and 48, either under 5 or above 10"
_LONG_TAIL = "paper, section 8: the most turns of a step exceed 40 times the mean"
_MIX = "paper, section 8: short tasks dominate, or the most turns would not exceed 40 times the mean"


def _production(turns: Any, prompt: float, observation: float, action: Any, weight: float) -> dict[str, Known]:
    last = turns == _T8_TURNS
    return {
        "turns": Known(turns, "fitted", f"{_ONE_OF_EIGHT}{'. ' + _LONG_TAIL if last else ''}"),
        "first_observation": Known(
            {"median": prompt, "sigma": 0.7, "max": 12000}, "given", "paper, section 8: prompts of at most 12k tokens"
        ),
        "observation": Known({"median": observation, "sigma": 0.5, "max": 6 * observation}, "assumed", "tool outputs"),
        "action": Known(
            action, "fitted", "paper, section 8: responses of at most 46k tokens, the longest 5 to 9 times the mean"
        ),
        "reset_seconds": Known(
            {"median": 8.0, "sigma": 0.5, "max": 60.0}, "given", "paper, section 8: 99.99 % are under a minute"
        ),
        "step_seconds": Known({"median": 0.5, "sigma": 1.0, "max": 60.0}, "assumed", "tools and shell commands"),
        "reset_error": _RARE,
        "reward_seconds": _JUDGE,
        "success": _HALF,
        "max_context": Known(65536, "assumed", "the longest prompt and response, and the observations between"),
        "weight": Known(weight, "fitted", _MIX),
    }


_T8_TURNS = {"median": 34, "sigma": 0.9, "max": 300}

PRODUCTION: dict[str, dict[str, Known]] = {
    "production_t1": _production(1, 900, 16, {"median": 5200, "sigma": 0.6, "max": 46000}, 0.42),
    "production_t2": _production(1, 2000, 16, {"median": 2200, "sigma": 0.7, "max": 30000}, 0.25),
    "production_t3": _production([1, 3], 1200, 200, {"median": 1200, "sigma": 0.7, "max": 12000}, 0.12),
    "production_t4": _production([2, 6], 1500, 300, {"median": 700, "sigma": 0.7, "max": 7000}, 0.10),
    "production_t5": _production(
        {"median": 10.5, "sigma": 0.4, "max": 40}, 2500, 400, {"median": 300, "sigma": 0.6, "max": 1100}, 0.04
    ),
    "production_t6": _production(
        {"median": 15.5, "sigma": 0.55, "max": 80}, 2500, 250, {"median": 220, "sigma": 0.5, "max": 570}, 0.02
    ),
    "production_t7": _production(
        {"median": 25, "sigma": 0.6, "max": 130}, 3000, 150, {"median": 160, "sigma": 0.4, "max": 350}, 0.02
    ),
    "production_t8": _production(_T8_TURNS, 3000, 50, {"median": 110, "sigma": 0.3, "max": 150}, 0.03),
}
"""Eight tasks in the shape of the paper's production jobs. Their weights are shares of the mix and sum to 1."""


BUILT_IN = WORKLOADS | PRODUCTION


def values_of(name: str) -> dict[str, Any]:
    """The fields of a built-in workload.

    Raises:
        KeyError: there is none of that name.
    """
    return {field: known.value for field, known in BUILT_IN[name].items()}

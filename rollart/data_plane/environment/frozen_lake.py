"""Frozen lake: walk from the start to the goal over the ice, do not fall into a hole.

Maps and dynamics are gymnasium's (``toy_text``): random solvable maps, four moves, an optional slippery lake
on which a move goes astray two times in three. The observation is text: the whole lake or the
surroundings of the player.

Reward of an episode: 1 for the goal, plus partial credit: ``progress`` times the part of the way (in
shortest-path steps from the start) that the player ever came closer, minus ``hole_penalty`` for falling in,
``wall_penalty`` for each move against the border and ``invalid_penalty`` for each action that is no
direction. Success is reaching the goal, unshaped.

Instances: of the solvable 4x4 maps with the default share of holes about 40 % of a few thousand draws are
distinct, larger lakes hardly repeat. Train and held-out maps are disjoint sets.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv, generate_random_map

from rollart.data_plane.environment.env import Env, Observation, Split, StepResult
from rollart.data_plane.environment.instances import chosen_word, instance_of, interval
from rollart.types import derive_seed

ACTIONS = ("left", "down", "right", "up")
"""In the order of gymnasium's action numbers."""

PLAYER, ICE, HOLE, GOAL, BORDER = "P", ".", "H", "G", "#"

_RULES = (
    f"You walk on a frozen lake: {PLAYER} is you, {ICE} ice, {HOLE} a hole, {GOAL} the goal, {BORDER} the border. "
    f"Reach the goal and do not fall into a hole. Answer with one word: {', '.join(ACTIONS)}."
)

Transition = tuple[float, int, float, bool]


class Lake(NamedTuple):
    """One instance.

    Attributes:
        side: Number of rows and columns.
        cells: The map as it is shown, without the player, with a border as wide as the player sees.
        moves: gymnasium's table: by state and action the possible (probability, state, reward, terminated).
        distances: Shortest way to the goal by state, -1 where there is none.
    """

    side: int
    cells: tuple[str, ...]
    moves: dict[int, dict[int, list[Transition]]]
    distances: tuple[int, ...]


class FrozenLake(Env):
    """See the module docstring.

    Args:
        size: Side of the square lake, or ``[smallest, largest]``.
        holes: Share of holes on the map, in [0, 1).
        slippery: gymnasium's slippery dynamics.
        view: ``grid`` shows the whole lake, ``local`` the square of ``2 * sight + 1`` cells around the player.
        sight: How far the local view reaches.
        style: ``words`` gives bare cells and takes exactly one word, for tiny models; ``text`` explains the
            rules and takes the last direction in the answer.
        progress, hole_penalty, wall_penalty, invalid_penalty: See the module docstring.
        split: Which instances; given by the session.

    Raises:
        ValueError: an argument is out of range.
    """

    def __init__(
        self,
        size: int | Sequence[int] = 4,
        holes: float = 0.2,
        slippery: bool = False,
        view: Literal["grid", "local"] = "grid",
        sight: int = 1,
        style: Literal["words", "text"] = "words",
        progress: float = 0.5,
        hole_penalty: float = 0.2,
        wall_penalty: float = 0.05,
        invalid_penalty: float = 0.1,
        split: Split | None = None,
    ) -> None:
        self._sizes = interval("size", size)
        if self._sizes[0] < 3:
            raise ValueError(f"size is {size}: a lake has a side of 3 or more")
        if view == "local" and sight < 1:
            raise ValueError(f"sight is {sight}: the local view reaches 1 cell or more")
        if not 0 <= holes < 1:
            raise ValueError(f"holes is {holes}: a share of at least 0 and below 1")
        if view not in ("grid", "local") or style not in ("words", "text"):
            raise ValueError(f"view is grid or local, style is words or text, not {view!r} and {style!r}")
        self._holes = holes
        self._slippery = slippery
        self._sight = sight if view == "local" else 0
        self._style = style
        self._progress = progress
        self._penalties = {"hole": hole_penalty, "wall": wall_penalty, "invalid": invalid_penalty}
        self._split = split
        self._lake = Lake(0, (), {}, ())
        self._state = 0
        self._best = 0
        self._counts = {"steps": 0.0, "invalid": 0.0, "wall": 0.0}
        self._slips = random.Random()

    @classmethod
    def words(cls, **args: object) -> list[str]:
        """All words of the ``words`` style.

        Raises:
            LookupError: the style is ``text``.
        """
        if cls(**args)._style == "text":  # type: ignore[arg-type]
            raise LookupError("frozen_lake of style 'text' has no closed vocabulary: use style 'words'")
        return [PLAYER, ICE, HOLE, GOAL, BORDER, *ACTIONS]

    def reset(self, seed: int, task: int) -> Observation:
        self._lake = _instance(seed, self._sizes, self._holes, self._slippery, self._sight, self._split)
        self._state = 0
        self._best = self._lake.distances[0]
        self._slips.seed(derive_seed(seed, "slips"))
        return self._seen() if self._style == "words" else f"{_RULES}\n{self._seen()}"

    def step(self, action: str) -> StepResult:
        word = chosen_word(action, ACTIONS, strict=self._style == "words")
        self._counts["steps"] += 1
        if word is None:
            self._counts["invalid"] += 1
            return self._seen(), -self._penalties["invalid"], False, False, self._info(valid=False)
        before = self._state
        self._state, terminated = self._move(ACTIONS.index(word))
        if self._state == before:
            self._counts["wall"] += 1
            return self._seen(), -self._penalties["wall"], False, False, self._info()
        return self._seen(), self._pay(), terminated, False, self._info()

    def random_action(self, seed: int) -> str:
        return random.Random(seed).choice(ACTIONS)

    def _move(self, action: int) -> tuple[int, bool]:
        outcomes = self._lake.moves[self._state][action]
        chance = self._slips.random() if len(outcomes) > 1 else 0.0
        for probability, state, _, terminated in outcomes:
            chance -= probability
            if chance < 0:
                return state, terminated
        return outcomes[-1][1], outcomes[-1][3]

    def _pay(self) -> float:
        cell = self._cell(self._state)
        if cell == HOLE:
            return -self._penalties["hole"]
        distance = self._lake.distances[self._state]
        closer = max(0, self._best - distance) / self._lake.distances[0]
        self._best = min(self._best, distance)
        return self._progress * closer + (1.0 if cell == GOAL else 0.0)

    def _info(self, *, valid: bool = True) -> dict[str, object]:
        success = bool(self._lake.distances[self._state] == 0)
        return {"success": success, "is_action_valid": valid, "metrics": dict(self._counts)}

    def _cell(self, state: int) -> str:
        row, column = divmod(state, self._lake.side)
        return self._lake.cells[row + self._sight][column + self._sight]

    def _seen(self) -> str:
        lake, sight = self._lake, self._sight
        row, column = divmod(self._state, lake.side)
        rows, left, right = lake.cells, 0, lake.side
        if sight:
            rows, left, right = lake.cells[row : row + 2 * sight + 1], column, column + 2 * sight + 1
        at = sight or row
        own = rows[at]
        rows = (*rows[:at], own[: column + sight] + PLAYER + own[column + sight + 1 :], *rows[at + 1 :])
        return "\n".join([" ".join(line[left:right]) for line in rows])


@lru_cache(maxsize=256)
def _instance(
    seed: int, sizes: tuple[int, int], holes: float, slippery: bool, border: int, split: Split | None
) -> Lake:
    """Members of a group ask for the same one in a row."""

    def make(draw: int) -> tuple[str, ...]:
        side = random.Random(draw).randint(*sizes)
        return tuple(generate_random_map(side, 1 - holes, draw))

    rows = instance_of(split, seed, make, "".join)
    table = FrozenLakeEnv(desc=list(rows), is_slippery=slippery).P
    return Lake(len(rows), _shown(rows, border), table, _distances(rows))


def _shown(rows: tuple[str, ...], border: int) -> tuple[str, ...]:
    symbols = str.maketrans("SF", ICE * 2)
    side = BORDER * border
    outside = (BORDER * (len(rows) + 2 * border),) * border
    return (*outside, *(side + row.translate(symbols) + side for row in rows), *outside)


def _distances(rows: tuple[str, ...]) -> tuple[int, ...]:
    side = len(rows)
    found = {(side - 1, side - 1): 0}
    queue = deque(found)
    while queue:
        row, column = queue.popleft()
        for r, c in ((row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1)):
            if 0 <= r < side and 0 <= c < side and rows[r][c] != HOLE and (r, c) not in found:
                found[r, c] = found[row, column] + 1
                queue.append((r, c))
    return tuple(found.get((r, c), -1) for r in range(side) for c in range(side))

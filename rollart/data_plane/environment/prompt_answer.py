"""Prompts and answers of a JSONL file, one turn each, judged by a verifier.

A line is an object; two of its fields are the prompt and the expected answer. The task index picks the row:
training goes through all rows in a shuffled order, another one each epoch; held-out tasks go through the
held-out rows in the order of the file. Held out is every ``held_out_every``-th row, or all rows of a second
file. Reward is what the verifier says, and success is full credit.
"""

from __future__ import annotations

import random
import re
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import msgspec

from rollart.data_plane.environment.env import Env, Observation, Split, StepResult
from rollart.data_plane.reward.verifiers import VERIFIERS
from rollart.types import derive_seed

_PLACE = re.compile(r"\{prompt\}")


class Row(NamedTuple):
    prompt: str
    answer: str


class PromptAnswer(Env):
    """See the module docstring.

    Args:
        path: The JSONL file.
        prompt_field, answer_field: Names of the two fields.
        verifier: ``exact``, ``numeric``, ``choice``, ``contains``, or ``module:function`` of (response,
            expected) that gives a bool or a credit between 0 and 1.
        template: What the policy sees; ``{prompt}`` stands for the row's prompt.
        held_out_path: A file of its own for held-out rows.
        held_out_every: Without one, every so manieth row of ``path`` is held out; 0 holds out none.
        shuffle: Train in a shuffled order; otherwise in the order of the file.
        split: Which rows; given by the session.

    Raises:
        ValueError: a line of a file is not such an object, no row is left, or the template lacks ``{prompt}``.
        OSError: a file cannot be read.
        LookupError: no such verifier.
    """

    def __init__(
        self,
        path: str,
        prompt_field: str = "prompt",
        answer_field: str = "answer",
        verifier: str = "exact",
        template: str = "{prompt}",
        held_out_path: str | None = None,
        held_out_every: int = 10,
        shuffle: bool = True,
        split: Split | None = None,
    ) -> None:
        if not _PLACE.search(template):
            raise ValueError("the template has no {prompt}: the policy would not see the question")
        if held_out_every < 0 or held_out_every == 1:
            raise ValueError(f"held_out_every is {held_out_every}: 2 or more, or 0 to hold out no row")
        self._verify = VERIFIERS.get(verifier)
        self._template = template
        self._rows = self._rows_of(split, path, held_out_path, (prompt_field, answer_field), held_out_every)
        if not self._rows:
            raise ValueError(f"no {split or 'data'} row in {path}: give held_out_path, or another held_out_every")
        self._shuffle = shuffle and split != "held_out"
        self._row = self._rows[0]

    @classmethod
    def words(cls, **args: object) -> list[str]:
        """All words of both splits' prompts and answers."""
        words: set[str] = set()
        for split in ("train", "held_out"):
            env = cls(**{**args, "split": split})  # type: ignore[arg-type]
            for row in env._rows:
                words.update(env._seen(row).split(), row.answer.split())
        return sorted(words)

    def reset(self, seed: int, task: int) -> Observation:
        epoch, position = divmod(task, len(self._rows))
        index = _order(len(self._rows), epoch)[position] if self._shuffle else position
        self._row = self._rows[index]
        return self._seen(self._row)

    def step(self, action: str) -> StepResult:
        credit = float(self._verify(action, self._row.answer))
        return "", credit, True, False, {"success": credit >= 1.0}

    def random_action(self, seed: int) -> str:
        """The answer of a random row."""
        return random.Random(seed).choice(self._rows).answer

    def _seen(self, row: Row) -> str:
        return _PLACE.sub(lambda _: row.prompt, self._template)

    @staticmethod
    def _rows_of(
        split: Split | None, path: str, held_out_path: str | None, fields: tuple[str, str], every: int
    ) -> tuple[Row, ...]:
        if held_out_path is not None:
            return load_rows(held_out_path if split == "held_out" else path, *fields)
        return load_rows(path, *fields, None if split is None else (every, split == "held_out"))


def load_rows(path: str, prompt_field: str, answer_field: str, part: tuple[int, bool] | None = None) -> tuple[Row, ...]:
    """The rows of a file; read once, and again when the file has changed.

    Args:
        path: The file.
        prompt_field, answer_field: Names of the fields.
        part: ``(n, True)`` for every n-th row, ``(n, False)`` for the others, ``None`` for all.

    Raises:
        ValueError: a line is not an object with both fields; the message names the line.
        OSError: the file cannot be read.
    """
    file = Path(path).expanduser()
    if not file.is_file():
        raise FileNotFoundError(f"no such file: {file} (a relative path starts at {Path.cwd()})")
    return _part(file, file.stat().st_mtime_ns, prompt_field, answer_field, part)


@lru_cache(maxsize=32)
def _part(
    file: Path, modified: int, prompt_field: str, answer_field: str, part: tuple[int, bool] | None
) -> tuple[Row, ...]:
    rows = _load(file, modified, prompt_field, answer_field)
    if part is None:
        return rows
    every, held_out = part
    return tuple(row for number, row in enumerate(rows, 1) if (every > 0 and number % every == 0) == held_out)


@lru_cache(maxsize=16)
def _load(file: Path, modified: int, prompt_field: str, answer_field: str) -> tuple[Row, ...]:
    rows = []
    decode = msgspec.json.Decoder(dict).decode
    for number, line in enumerate(file.read_bytes().splitlines(), start=1):
        if not line.strip():
            continue
        try:
            item = decode(line)
        except msgspec.DecodeError as error:
            raise ValueError(f"{file}, line {number}: not a JSON object ({error})") from error
        for field in (prompt_field, answer_field):
            if not isinstance(item.get(field), str | int | float):
                found = ", ".join(map(str, item))
                message = f"{file}, line {number}: no text or number in field '{field}', it has: {found}"
                raise ValueError(message)  # noqa: TRY004 - the value is in the user's data
        rows.append(Row(str(item[prompt_field]), str(item[answer_field])))
    return tuple(rows)


@lru_cache(maxsize=4)
def _order(count: int, epoch: int) -> tuple[int, ...]:
    order = list(range(count))
    random.Random(derive_seed(epoch, "order")).shuffle(order)
    return tuple(order)

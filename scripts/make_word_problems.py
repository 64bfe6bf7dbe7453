"""Write ``examples/data/word_problems_{train,test}.jsonl``: small word problems in the format of GSM8K.

    scripts/make_word_problems.py [FOLDER]        (default: examples/data)

A line is ``{"question": ..., "answer": ...}``; the answer is a worked solution that ends with ``####
NUMBER``. Problems have one or two steps and numbers up to 40, since a small model should solve some of
them. They are drawn from a fixed seed, no question appears twice, and so none of the 200 training problems
is among the 40 held-out ones.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

TRAIN, TEST = 200, 40
SEED = 7

NAMES = ("Ada", "Ben", "Chloe", "David", "Emma", "Finn", "Grace", "Hugo", "Iris", "Jonas", "Lena", "Maya", "Noah")
THINGS = ("apples", "pencils", "stickers", "books", "marbles", "cookies", "shells", "stamps", "cards", "beads")

Problem = tuple[str, str, int]
"""Question, worked solution, result."""


def gift(draw: random.Random, one: str, two: str, things: str) -> Problem:
    has, more = draw.randint(2, 12), draw.randint(2, 9)
    question = f"{one} has {has} {things}. {two} gives {one} {more} more. How many {things} does {one} have now?"
    return question, f"{one} has {has} + {more} = {has + more} {things}.", has + more


def loss(draw: random.Random, one: str, two: str, things: str) -> Problem:
    has = draw.randint(5, 15)
    less = draw.randint(2, has - 2)
    question = f"{one} has {has} {things} and gives {less} of them to {two}. How many {things} does {one} have left?"
    return question, f"{one} has {has} - {less} = {has - less} {things} left.", has - less


def boxes(draw: random.Random, one: str, two: str, things: str) -> Problem:
    count, each = draw.randint(2, 6), draw.randint(2, 6)
    question = f"{one} has {count} boxes with {each} {things} in each box. How many {things} does {one} have?"
    return question, f"{count} boxes hold {count} * {each} = {count * each} {things}.", count * each


def share(draw: random.Random, one: str, two: str, things: str) -> Problem:
    children, each = draw.randint(2, 5), draw.randint(2, 6)
    total = children * each
    question = (
        f"{one} shares {total} {things} equally among {children} children. How many {things} does each child get?"
    )
    return question, f"Each child gets {total} / {children} = {each} {things}.", each


def difference(draw: random.Random, one: str, two: str, things: str) -> Problem:
    fewer, extra = draw.randint(2, 10), draw.randint(2, 8)
    more = fewer + extra
    question = f"{one} has {more} {things} and {two} has {fewer}. How many more {things} does {one} have than {two}?"
    return question, f"{one} has {more} - {fewer} = {extra} more {things}.", extra


def both(draw: random.Random, one: str, two: str, things: str) -> Problem:
    first, extra = draw.randint(2, 9), draw.randint(2, 6)
    second = first + extra
    question = (
        f"{one} has {first} {things}. {two} has {extra} more than {one}. How many {things} do they have together?"
    )
    solution = (
        f"{two} has {first} + {extra} = {second} {things}. Together they have {first} + {second} = {first + second}."
    )
    return question, solution, first + second


def price(draw: random.Random, one: str, two: str, things: str) -> Problem:
    count, each = draw.randint(2, 5), draw.randint(2, 6)
    cost = count * each
    paid = draw.randint(cost + 1, 40)
    question = (
        f"{one} buys {count} {things} for {each} dollars each and pays with {paid} dollars. How much change is due?"
    )
    solution = (
        f"The {things} cost {count} * {each} = {cost} dollars. The change is {paid} - {cost} = {paid - cost} dollars."
    )
    return question, solution, paid - cost


def days(draw: random.Random, one: str, two: str, things: str) -> Problem:
    start, each, count = draw.randint(2, 9), draw.randint(2, 5), draw.randint(2, 5)
    found = each * count
    question = (
        f"{one} has {start} {things} and finds {each} more every day. "
        f"How many {things} does {one} have after {count} days?"
    )
    solution = (
        f"In {count} days {one} finds {count} * {each} = {found} more, and has {start} + {found} = {start + found}."
    )
    return question, solution, start + found


KINDS: tuple[Callable[[random.Random, str, str, str], Problem], ...] = (
    gift, loss, boxes, share, difference, both, price, days,
)  # fmt: skip


def problems(seed: int) -> Iterator[dict[str, str]]:
    """Distinct problems without end, the kinds in turn."""
    draw = random.Random(seed)
    seen: set[str] = set()
    while True:
        for kind in KINDS:
            one, two = draw.sample(NAMES, 2)
            question, solution, result = kind(draw, one, two, draw.choice(THINGS))
            if question not in seen:
                seen.add(question)
                yield {"question": question, "answer": f"{solution}\n#### {result}"}


def main(arguments: list[str]) -> None:
    folder = Path(arguments[0]) if arguments else Path(__file__).parents[1] / "examples" / "data"
    source = problems(SEED)
    for name, count in {"train": TRAIN, "test": TEST}.items():
        path = folder / f"word_problems_{name}.jsonl"
        path.write_text("".join(json.dumps(next(source)) + "\n" for _ in range(count)))
        print(f"wrote {path}")


if __name__ == "__main__":
    main(sys.argv[1:])

"""A verifier as users write them, named by its import path."""

from __future__ import annotations


def shared_letters(response: str, expected: str) -> float:
    """Share of the expected answer's letters that the response has, case aside."""
    wanted = set(expected.lower())
    return len(wanted & set(response.lower())) / len(wanted)

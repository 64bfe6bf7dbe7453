"""Attention in pieces: however the planner cuts a step, every token gets the attention over its own history."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rollart.data_plane.generation.attention import Chunks, GatheredRows, Piece, Rows, TokenRun, run_pieces
from rollart.data_plane.generation.kv_cache import KVCache
from rollart.data_plane.generation.planning import Costs, Planner

SLOTS, LENGTH, KV_HEADS, HEADS, DIM = 41, 24, 2, 6, 8


@pytest.fixture(scope="module")
def cache() -> KVCache:
    cache = KVCache(1, SLOTS, LENGTH, KV_HEADS, DIM, torch.float32, torch.device("cpu"))
    generator = torch.Generator().manual_seed(0)
    for tensor in (*cache.keys, *cache.values):
        tensor.normal_(generator=generator)
    return cache


def query(count: int) -> torch.Tensor:
    return torch.randn(count, HEADS, DIM, generator=torch.Generator().manual_seed(count))


def expected(cache: KVCache, rows: torch.Tensor, slots: list[int], lengths: list[int]) -> torch.Tensor:
    """One token at a time, from the definition."""
    found = []
    for row, slot, length in zip(rows, slots, lengths, strict=True):
        for head in range(HEADS):
            keys, values = (part[0][slot, head // (HEADS // KV_HEADS), :length] for part in (cache.keys, cache.values))
            found.append(torch.softmax(keys @ row[head] * DIM**-0.5, 0) @ values)
    return torch.stack(found).view(len(rows), HEADS, DIM)


def kinds(pieces: list[Piece]) -> list[type[Piece]]:
    return [type(piece) for piece in pieces]


@pytest.mark.parametrize(
    ("costs", "wanted"),
    [
        (Costs(call=0.0, copied_byte=1.0, multiplication=1.0), [Rows] * 4),
        (Costs(call=1.0, copied_byte=1e-9, multiplication=1.0), [GatheredRows]),
    ],
    ids=["cheap calls", "cheap copies"],
)
def test_rows_of_scattered_sessions(cache: KVCache, costs: Costs, wanted: list[type[Piece]]) -> None:
    slots, lengths, rows = [0, 1, 8, 20, 40], [4, 3, 6, 24, 6], query(5)
    pieces = Planner(cache, HEADS, costs).rows(0, np.array(slots), np.array(lengths))
    assert kinds(pieces) == wanted
    assert torch.allclose(run_pieces(cache, 0, pieces, rows, None), expected(cache, rows, slots, lengths), atol=1e-5)


@pytest.mark.parametrize("lengths", [[5, 5, 5, 5, 5], [7, 1, 24, 2, 9]], ids=["equal", "mixed"])
@pytest.mark.parametrize("slots", [[3, 4, 5, 6, 7], [3, 4, 6, 7, 8]], ids=["dense", "with a gap"])
def test_rows_of_neighbouring_sessions_are_one_view(cache: KVCache, slots: list[int], lengths: list[int]) -> None:
    costs = Costs(call=1.0, copied_byte=1e-6, multiplication=1.0)
    pieces = Planner(cache, HEADS, costs).rows(0, np.array(slots), np.array(lengths))
    assert kinds(pieces) == [Rows]
    rows = query(5)
    assert torch.allclose(run_pieces(cache, 0, pieces, rows, None), expected(cache, rows, slots, lengths), atol=1e-5)


@pytest.mark.parametrize(
    ("call", "groups"), [(0.0, 3), (1e3, 1), (0.02, 2)], ids=["each alone", "all together", "by size"]
)
def test_chunks_are_padded_where_that_is_cheaper(cache: KVCache, call: float, groups: int) -> None:
    runs = [TokenRun(9, 3, 2), TokenRun(2, 0, 3), TokenRun(30, 8, 16)]
    planner = Planner(cache, HEADS, Costs(call, copied_byte=0.0, multiplication=1e-5))
    pieces = planner.chunks(0, runs)
    assert kinds(pieces) == [Chunks] * groups
    slots = [run.slot for run in runs for _ in range(run.size)]
    lengths = [run.start + offset + 1 for run in runs for offset in range(run.size)]
    rows = query(len(slots))
    wanted = expected(cache, rows, slots, lengths)
    assert torch.allclose(run_pieces(cache, 0, pieces, rows, None), wanted, atol=1e-5)
    one_by_one, first = [], 0
    for run in runs:
        one_by_one.append(planner.tokens(first, run))
        first += run.size
    assert torch.allclose(run_pieces(cache, 0, one_by_one, rows, None), wanted, atol=1e-5)


def test_tokens_that_no_piece_covers_give_zeros(cache: KVCache) -> None:
    planner, rows = Planner(cache, HEADS), query(6)
    pieces = [*planner.rows(1, np.array([4]), np.array([9])), *planner.chunks(3, [TokenRun(5, 2, 2)])]
    out = run_pieces(cache, 0, pieces, rows, None)
    assert torch.equal(out[[0, 2, 5]], torch.zeros(3, HEADS, DIM))
    wanted = expected(cache, rows[[1, 3, 4]], [4, 5, 5], [9, 3, 4])
    assert torch.allclose(out[[1, 3, 4]], wanted, atol=1e-5)


def test_what_is_written_is_gathered(cache: KVCache) -> None:
    mine = KVCache(2, 5, LENGTH, KV_HEADS, DIM, torch.float32, torch.device("cpu"))
    slots, positions = np.array([3, 3, 0]), np.array([0, 1, 0])
    keys, values = torch.randn(3, KV_HEADS, DIM), torch.randn(3, KV_HEADS, DIM)
    mine.write(1, torch.from_numpy(mine.write_index(slots, positions)), keys, values)
    found_keys, found_values = mine.gather(1, torch.from_numpy(mine.gather_index(np.array([0, 3]))), 2)
    assert torch.equal(found_keys[1].transpose(0, 1), keys[:2])
    assert torch.equal(found_values[0, :, 0], values[2])
    assert not mine.keys[0].any()
    mine.clear()
    assert not mine.keys[1].any()

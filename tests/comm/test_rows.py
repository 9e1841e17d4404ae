"""Gathering and scattering against PyTorch's indexing, for every width of a row."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from windrow.comm.rows import CONVERTED_BYTES, move_rows, move_vectors, numbers_in_ranges
from windrow.comm.rows_kernels import AHEAD, move_past_caches


def matrix(rows, columns, dtype):
    values = np.random.default_rng(rows + columns).integers(0, 200, (rows, columns))
    return torch.from_numpy(values).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.uint8, torch.float64], ids=str)
@pytest.mark.parametrize("columns", [1, 2, 3, 8, 33, 130])
def test_rows_go_where_indexing_would_put_them(dtype, columns):
    rows = matrix(50, columns, dtype)
    positions = torch.from_numpy(np.random.default_rng(1).integers(0, 50, 70))
    out = torch.zeros((70, columns), dtype=dtype)
    move_rows(rows, positions, out, None)
    assert torch.equal(out, rows[positions])

    places = torch.from_numpy(np.random.default_rng(2).permutation(60)[:50])
    out = torch.zeros((60, columns), dtype=dtype)
    expected = out.clone()
    expected[places] = rows
    move_rows(rows, None, out, places)
    assert torch.equal(out, expected)


@pytest.mark.parametrize("first", [0, 1, 16])
@pytest.mark.parametrize("columns", [16, 8, 48])
def test_large_rows_are_written_past_the_caches(monkeypatch, columns, first):
    monkeypatch.setattr("windrow.comm.rows.LARGE_BYTES", 0)
    streamed = []
    monkeypatch.setattr(
        "windrow.comm.rows.move_past_caches", lambda *given: (streamed.append(1), move_past_caches(*given))
    )
    rows, positions = matrix(50, columns, torch.float32), torch.from_numpy(np.random.default_rng(1).integers(0, 50, 70))
    places = torch.from_numpy(np.random.default_rng(2).permutation(80)[:70])
    memory = torch.zeros(first + 80 * columns)
    out = memory[first:].view(80, columns)
    move_rows(rows, positions, out, places)
    expected = torch.zeros_like(out)
    expected[places] = rows[positions]
    assert torch.equal(out, expected)
    move_rows(rows, positions, out[:70], None)
    assert torch.equal(out[:70], rows[positions])
    # Whole cache lines only, where they begin.
    assert len(streamed) == (2 if columns % 16 == first % 16 == 0 else 0)


def test_rows_may_have_many_dimensions_none_or_be_a_view():
    rows = matrix(20, 24, torch.float32)
    positions = torch.tensor([3, 1, 19])
    out = torch.empty(3, 2, 12)
    move_rows(rows.view(20, 2, 12), positions, out, None)
    assert torch.equal(out, rows[positions].view(3, 2, 12))
    out = torch.empty(3)
    move_rows(rows[:, 0], positions, out, None)
    assert torch.equal(out, rows[positions, 0])
    nothing = torch.empty(0, 24)
    move_rows(rows, torch.empty(0, dtype=torch.int64), nothing, None)
    move_rows(torch.empty(4, 0), positions, torch.empty(3, 0), None)
    move_rows(nothing, None, rows, torch.empty(0, dtype=torch.int64))
    assert torch.equal(rows, matrix(20, 24, torch.float32))


DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int32]


@pytest.mark.parametrize("wanted", DTYPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("columns", [1, 7, 40])
def test_rows_are_converted_on_their_way(dtype, wanted, columns):
    generator = np.random.default_rng(columns)
    rows = torch.from_numpy(generator.normal(size=(60, columns)) * 100).to(dtype)
    positions = torch.from_numpy(generator.integers(0, 60, 45))
    places = torch.from_numpy(generator.permutation(80)[:45])
    out = torch.zeros((80, columns), dtype=wanted)
    expected = out.clone()
    expected[places] = rows[positions].to(wanted)
    move_rows(rows, positions, out, places)
    assert torch.equal(out, expected)

    gathered = torch.zeros((45, columns), dtype=wanted)
    move_rows(rows, positions, gathered, None)
    assert torch.equal(gathered, rows[positions].to(wanted))
    scattered = torch.zeros((80, columns), dtype=wanted)
    move_rows(rows[:45], None, scattered, places)
    move_rows(rows[:45], None, out, places)
    assert torch.equal(out, scattered)
    assert torch.equal(out[places], rows[:45].to(wanted))
    move_rows(rows, None, out[:60], None)
    assert torch.equal(out[:60], rows.to(wanted))


@pytest.mark.parametrize("wanted", [torch.float32, torch.float16])
@pytest.mark.parametrize("large", [0, 1 << 30])
def test_threads_share_the_rows(monkeypatch, threads, wanted, large):
    monkeypatch.setattr("windrow.comm.rows.LARGE_BYTES", large)
    monkeypatch.setattr("windrow.comm.rows.BYTES_AT_ONCE", 200)
    threads(3)
    test_rows_are_converted_on_their_way(torch.float32, wanted, 16)


def test_rows_that_are_no_block_of_memory_are_converted_too():
    whole = matrix(30, 6, torch.float32)
    rows, places = whole[:, ::2], torch.arange(29, -1, -1)
    out = torch.zeros(30, 3, dtype=torch.float16)
    move_rows(rows, None, out, places)
    assert torch.equal(out, rows.flip(0).half())
    move_rows(rows, places, out, None)
    assert torch.equal(out, rows.flip(0).half())
    move_rows(rows, torch.tensor([4]), out, torch.tensor([2]))
    assert torch.equal(out[2], rows[4].half())


def test_large_rows_are_converted_in_pieces():
    rows = matrix(9, CONVERTED_BYTES // 16, torch.float64)
    positions, places = torch.tensor([8, 0, 5, 5]), torch.tensor([3, 1, 2, 0])
    out = torch.zeros((4, rows.shape[1]), dtype=torch.float32)
    move_rows(rows, positions, out, places)
    assert torch.equal(out[places], rows[positions].float())
    move_rows(rows, positions, out, None)
    assert torch.equal(out, rows[positions].float())


@pytest.mark.parametrize("count", [1, AHEAD - 1, AHEAD, AHEAD + 1, 3 * AHEAD])
@pytest.mark.parametrize("wanted", DTYPES, ids=str)
def test_fewer_rows_than_are_prefetched(count, wanted):
    rows = matrix(count, 5, torch.float32)
    backwards = torch.arange(count).flip(0)
    out, back = torch.zeros((count, 5), dtype=wanted), torch.zeros_like(rows)
    move_rows(rows, backwards, out, None)
    assert torch.equal(out, rows.flip(0).to(wanted))
    move_rows(out, None, back, backwards)
    assert torch.equal(back, rows)


@pytest.mark.parametrize("strided", [False, True])
@pytest.mark.parametrize("listed", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_vectors_are_added_anywhere_in_a_matrix_and_copied_back(strided, listed, dtype):
    """Compiled for float32, by PyTorch for others, as on a GPU."""
    wide = torch.arange(60, dtype=dtype).view(6, 10)
    matrix = wide[:, :8] if strided else wide[:, :8].contiguous()
    vectors = torch.tensor([[100.0, 200, 300], [400, 500, 600], [700, 800, 900]], dtype=dtype)
    positions = torch.tensor([2, 0, 1]) if listed else None
    expected, picked = matrix.clone(), vectors if positions is None else vectors[positions]
    # Two of them are in one row.
    for vector, (row, first) in zip(picked, [(5, 5), (0, 0), (0, 4)], strict=True):
        expected[row, first : first + 3] += vector
    places = torch.tensor([45, 0, 4])
    move_vectors(vectors, positions, matrix, places)
    assert torch.equal(matrix, expected)
    back = torch.zeros_like(vectors)
    move_vectors(back, positions, matrix, places, back=True)
    found = back if positions is None else back[positions]
    assert torch.equal(found, expected.flatten()[places[:, None] + torch.arange(3)])


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 5)), max_size=6))
def test_numbers_in_ranges(ranges):
    starts, lengths = (np.array(column, np.int64) for column in (zip(*ranges, strict=True) if ranges else ((), ())))
    which, numbers = numbers_in_ranges(starts, starts + lengths)
    expected = [(place, start + n) for place, (start, length) in enumerate(ranges) for n in range(length)]
    assert list(zip(which.tolist(), numbers.tolist(), strict=True)) == expected

"""Runs of rows against one run at a time."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from windrow.recsys.models.attention import places_from_the_end, repeated, segment_softmax, summed


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@given(lengths=st.lists(st.integers(0, 4), max_size=6), scale=st.sampled_from([0.0, 1.0, 1e4]))
def test_softmax_is_that_of_each_run(lengths: list[int], scale: float) -> None:
    scores = (torch.randn(sum(lengths), generator=generator(), dtype=torch.float64) * scale).requires_grad_()
    result = segment_softmax(scores, torch.tensor(lengths, dtype=torch.int64))
    expected = torch.cat([scores[:0], *(run.softmax(0) for run in scores.split(lengths))])
    torch.testing.assert_close(result, expected)
    upstream = torch.randn(len(scores), generator=generator(1), dtype=torch.float64)
    for mine, slow in zip(
        torch.autograd.grad(result, scores, upstream),
        torch.autograd.grad(expected, scores, upstream),
        strict=True,
    ):
        torch.testing.assert_close(mine, slow, atol=1e-12, rtol=1e-9)


@given(lengths=st.lists(st.integers(0, 4), max_size=6))
def test_places_from_the_end(lengths: list[int]) -> None:
    places = places_from_the_end(torch.tensor(lengths, dtype=torch.int64), sum(lengths))
    assert places.tolist() == [place for length in lengths for place in reversed(range(length))]


@given(lengths=st.lists(st.integers(0, 4), max_size=6))
def test_rows_are_repeated_and_summed(lengths: list[int]) -> None:
    rows = torch.arange(2 * len(lengths)).view(-1, 2).float()
    runs = repeated(rows, torch.tensor(lengths, dtype=torch.int64), sum(lengths))
    assert runs.tolist() == [
        row for row, length in zip(rows.tolist(), lengths, strict=True) for _ in range(length)
    ]
    totals = summed(runs, torch.tensor(lengths, dtype=torch.int64))
    assert torch.equal(totals, rows * torch.tensor(lengths).view(-1, 1))

"""Logits as predictions, against the same said one vertex at a time."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from windrow.comm.errors import DataError
from windrow.gnn.metrics import check_finite, prediction_columns

LOGITS = st.lists(st.lists(st.floats(-30, 30, width=32), min_size=3, max_size=3), min_size=1, max_size=6)


def sigmoid(value):
    return 1 / (1 + math.exp(-value))


@given(LOGITS)
def test_single_label(logits):
    columns = prediction_columns("single-label", torch.tensor(logits))
    assert columns["prediction"].dtype == torch.int32
    assert columns["prediction"].tolist() == [row.index(max(row)) for row in logits]
    expected = [math.exp(max(row)) / sum(math.exp(value) for value in row) for row in logits]
    assert columns["probability"].dtype == torch.float32
    assert columns["probability"].tolist() == pytest.approx(expected, rel=1e-6)


@given(LOGITS)
def test_binary_and_multi_label(logits):
    matrix = torch.tensor(logits)
    (of_one,) = prediction_columns("binary", matrix[:, :1]).values()
    assert of_one.tolist() == pytest.approx([sigmoid(row[0]) for row in logits], rel=1e-6)
    (of_each,) = prediction_columns("multi-label", matrix).values()
    assert of_each.shape == matrix.shape
    assert of_each.flatten().tolist() == pytest.approx([sigmoid(v) for row in logits for v in row], rel=1e-6)


@pytest.mark.parametrize("task", ["single-label", "binary", "multi-label"])
def test_no_vertices(task):
    outputs = 1 if task == "binary" else 3
    columns = prediction_columns(task, torch.empty((0, outputs)))
    assert all(len(column) == 0 for column in columns.values())


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_says_nothing_is_refused(value):
    vertices = torch.tensor([4, 7, 9])
    check_finite(vertices, torch.ones(3, 2))
    check_finite(vertices, torch.ones(3))
    logits = torch.ones(3, 2)
    logits[1, 1] = value
    with pytest.raises(DataError, match="prediction for vertex 7 is NaN or infinite"):
        check_finite(vertices, logits)

"""Losses and measures against definitions written out, and predictions as columns."""

import math
from functools import partial
from typing import get_args

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from windrow.comm.errors import DataError
from windrow.gnn.graph import HAS_COLUMNS, Task
from windrow.gnn.metrics import (
    LOWER_IS_BETTER,
    METRICS_OF,
    Metric,
    check_finite,
    check_labels_can_be_scored,
    evaluate_predictions,
    prediction_columns,
)
from windrow.gnn.task import loss_sum

TASKS = list(METRICS_OF)


@st.composite
def predictions(draw):
    """A task with logits that tie often, and labels; some classes may not occur."""
    task = draw(st.sampled_from(TASKS[:3]))
    n, num_classes = draw(st.integers(1, 12)), draw(st.integers(1, 4))
    shape = {"binary": draw(st.sampled_from([(n,), (n, 1)]))}.get(task, (n, num_classes))

    def numbers(low, high, size):
        return torch.tensor(draw(st.lists(st.integers(low, high), min_size=size, max_size=size)))

    logits = (numbers(-3, 3, math.prod(shape)) / 2).reshape(shape)
    if task == "multi-label":
        return task, logits, numbers(0, 1, n * num_classes).reshape(shape).float()
    return task, logits, numbers(0, num_classes - 1 if task == "single-label" else 1, n)


def slow_predicted_and_wanted(task, logits, labels):
    """For each class: which vertices are predicted to have it, and which have it, as lists of bool."""
    if task == "multi-label":
        return (logits.t() > 0).tolist(), (labels.t() > 0).tolist()
    if task == "binary":
        predicted, classes = [int(logit > 0) for logit in logits.flatten().tolist()], range(2)
    else:
        predicted, classes = [row.index(max(row)) for row in logits.tolist()], range(logits.shape[1])
    wanted = labels.tolist()
    return [[p == c for p in predicted] for c in classes], [[w == c for w in wanted] for c in classes]


def slow_accuracy(task, logits, labels):
    predicted, wanted = slow_predicted_and_wanted(task, logits, labels)
    pairs = [list(zip(p, w, strict=True)) for p, w in zip(predicted, wanted, strict=True)]
    if task == "multi-label":
        return sum(p == w for column in pairs for p, w in column) / labels.numel()
    return sum(p and w for column in pairs for p, w in column) / len(labels)


def slow_macro_f1(task, logits, labels):
    scores = []
    for predicted, wanted in zip(*slow_predicted_and_wanted(task, logits, labels), strict=True):
        both = sum(p and w for p, w in zip(predicted, wanted, strict=True))
        if sum(predicted) + sum(wanted) > 0:
            scores.append(2 * both / (sum(predicted) + sum(wanted)))
    return sum(scores) / len(scores) if scores else 1.0


def slow_micro_f1(task, logits, labels):
    classes = list(zip(*slow_predicted_and_wanted(task, logits, labels), strict=True))[task == "binary" :]
    pairs = [pair for predicted, wanted in classes for pair in zip(predicted, wanted, strict=True)]
    total = sum(p + w for p, w in pairs)
    return 2 * sum(p and w for p, w in pairs) / total if total else 1.0


def slow_roc_auc(task, logits, labels):
    """The share of (vertex with the class, vertex without) pairs in the right order; a tie is half right."""
    scores = logits.double().log_softmax(1) if task == "single-label" else logits.reshape(len(labels), -1)
    _, wanted = slow_predicted_and_wanted(task, logits, labels)
    areas = []
    wanted = wanted[1:] if task == "binary" else wanted
    for column, wanted_here in zip(scores.t().tolist(), wanted, strict=True):
        positive = [s for s, w in zip(column, wanted_here, strict=True) if w]
        negative = [s for s, w in zip(column, wanted_here, strict=True) if not w]
        if positive and negative:
            right = sum((p > q) + 0.5 * (p == q) for p in positive for q in negative)
            areas.append(right / (len(positive) * len(negative)))
    return sum(areas) / len(areas) if areas else None


@given(predictions())
@example(("multi-label", -torch.ones(2, 3), torch.zeros(2, 3)))
def test_accuracy_and_f1_equal_their_definitions(case):
    assert evaluate_predictions("accuracy", *case) == pytest.approx(slow_accuracy(*case), abs=1e-6)
    assert evaluate_predictions("macro_f1", *case) == pytest.approx(slow_macro_f1(*case), abs=1e-6)
    assert evaluate_predictions("micro_f1", *case) == pytest.approx(slow_micro_f1(*case), abs=1e-6)


@given(predictions())
def test_roc_auc_equals_its_definition_or_is_refused(case):
    expected = slow_roc_auc(*case)
    if expected is None:
        with pytest.raises(DataError, match="ROC-AUC has no meaning"):
            evaluate_predictions("roc_auc", *case)
    else:
        assert evaluate_predictions("roc_auc", *case) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_roc_auc_of_a_binary_task_hangs_on_the_order_alone(scale):
    """Logits within 0 and 1 are not taken for probabilities, and those whose sigmoid is 1 do not tie."""
    logits = scale * torch.tensor([0.9, 0.8, 0.7, 0.6, 0.5, 0.4])
    labels = torch.tensor([1, 1, 0, 1, 0, 0])
    assert evaluate_predictions("roc_auc", "binary", logits, labels) == pytest.approx(8 / 9, abs=1e-6)
    assert evaluate_predictions("accuracy", "binary", logits, labels) == pytest.approx(0.5)


@pytest.mark.parametrize("metric", ["accuracy", "macro_f1", "roc_auc"])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_diverged_prediction_is_named(metric, bad):
    with pytest.raises(DataError, match="prediction for vertex 1 of 3 is NaN or infinite: the training"):
        evaluate_predictions(metric, "binary", torch.tensor([1.0, bad, 0.0]), torch.tensor([0, 1, 1]))


@pytest.mark.parametrize(
    ("metric", "labels", "message"),
    [
        ("accuracy", torch.tensor([], dtype=torch.int64), "no vertices to measure accuracy on"),
        ("macro_f1", torch.tensor([2, -1]), r"vertex 1 of 2 to measure macro_f1 on has no label \(-1\)"),
        ("roc_auc", torch.tensor([3, 3]), r"2 vertices that all have the same label \(3\)"),
        ("roc_auc", torch.tensor([[1.0, 0.0]] * 2), r"all have the same label \(\[1.0, 0.0\]\)"),
    ],
)
def test_labels_that_cannot_be_scored_are_refused_beforehand(metric, labels, message):
    with pytest.raises(DataError, match=message):
        check_labels_can_be_scored(metric, labels)
    check_labels_can_be_scored("accuracy", torch.tensor([3, 3]))
    check_labels_can_be_scored("roc_auc", torch.tensor([[1.0, 0.0], [1.0, 1.0]]))


def test_every_task_has_metrics():
    assert {*METRICS_OF} == {*get_args(Task)}
    assert {metric for metrics in METRICS_OF.values() for metric in metrics} == {*get_args(Metric)}
    assert {*LOWER_IS_BETTER} < {*METRICS_OF["regression"]}


NUMBERS = st.lists(st.tuples(*[st.floats(-100, 100, width=32)] * 4), min_size=1, max_size=8)


@given(NUMBERS)
def test_measures_of_real_numbers_equal_their_definitions(rows):
    numbers, labels = torch.tensor(rows).reshape(-1, 2, 2).unbind(2)
    errors = [[float(n) - float(w) for n, w in zip(*pair, strict=True)] for pair in zip(numbers, labels, strict=True)]
    squares = [error**2 for row in errors for error in row]
    assert float(loss_sum("regression", numbers, labels)) == pytest.approx(sum(squares) / 2, rel=1e-5, abs=1e-5)
    measures = {
        metric: partial(evaluate_predictions, metric, "regression", numbers, labels)
        for metric in METRICS_OF["regression"]
    }
    assert measures["rmse"]() == pytest.approx(math.sqrt(sum(squares) / len(squares)), abs=1e-9)
    assert measures["mae"]() == pytest.approx(sum(map(math.sqrt, squares)) / len(squares), abs=1e-9)
    varies = [column for column in range(2) if len(set(labels[:, column].tolist())) > 1]
    if not varies:
        with pytest.raises(DataError, match=r"R2 has no meaning on .* choose another split or the metric rmse"):
            measures["r2"]()
        return
    of_columns = []
    for column in varies:
        wanted = labels[:, column].tolist()
        mean = sum(wanted) / len(wanted)
        spread = sum((value - mean) ** 2 for value in wanted)
        of_columns.append(1 - sum(row[column] ** 2 for row in errors) / spread)
    assert measures["r2"]() == pytest.approx(sum(of_columns) / len(of_columns), rel=1e-6, abs=1e-6)


def slow_loss(task, logits, labels):
    total = torch.zeros((), dtype=torch.float64)
    for logit, label in zip(logits.double().reshape(len(labels), -1), labels, strict=True):
        if task == "single-label":
            total -= logit.softmax(0)[label].log()
        else:
            probability, wanted = logit.sigmoid(), label.reshape(-1).double()
            total -= (wanted * probability.log() + (1 - wanted) * (1 - probability).log()).mean()
    return total


@given(predictions())
def test_loss_equals_its_definition(case):
    assert float(loss_sum(*case)) == pytest.approx(float(slow_loss(*case)), rel=1e-5, abs=1e-5)


@given(predictions(), st.data())
def test_losses_of_pieces_add_up_to_the_loss_of_all(case, data):
    task, logits, labels = case
    cut = data.draw(st.integers(0, len(labels)))
    pieces = loss_sum(task, logits[:cut], labels[:cut]) + loss_sum(task, logits[cut:], labels[cut:])
    torch.testing.assert_close(pieces, loss_sum(task, logits, labels))


@pytest.mark.parametrize("task", TASKS)
def test_a_rank_without_seeds_has_loss_zero_with_a_gradient(task):
    logits = torch.empty((0, 1 if task == "binary" else 3), requires_grad=True)
    labels = torch.empty((0, 3)) if task in HAS_COLUMNS else torch.empty(0, dtype=torch.int64)
    loss = loss_sum(task, logits, labels)
    loss.backward()
    assert loss.item() == 0.0
    assert logits.grad is not None


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


def test_regression_is_as_predicted():
    numbers = torch.tensor([[1.5, -2.0], [0.0, 7.0]])
    assert prediction_columns("regression", numbers)["predictions"].tolist() == numbers.tolist()
    assert prediction_columns("regression", numbers[:, :1])["prediction"].tolist() == [1.5, 0.0]


@pytest.mark.parametrize("task", TASKS)
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

"""Metrics (accuracy, macro-F1, micro-F1, ROC-AUC; all: higher is better), and predictions as columns of a table.

Logits are [n, C] for "single-label" and "multi-label", and [n] or [n, 1] for "binary", where they speak for
class 1. Labels are as in `windrow.gnn.graph.Graph`. Each task is scored column by column::

    single-label, C = 3      labels  2 0      columns  0 0 1      scores: log-probability of each class
                                                       1 0 0
    multi-label, C = 3       as they are      columns  1 0 1      scores: logits
                                                       0 0 1
    binary                   labels  1 0      columns  0 1        scores: minus logit, logit
                                                       1 0

What is written for users::

    task           columns
    single-label   prediction: the class; probability: of that class
    binary         probability: of class 1
    multi-label    probabilities: one of each class

Nothing here communicates.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from windrow.comm.errors import DataError
from windrow.gnn.graph import Task

__all__ = [
    "Metric",
    "check_finite",
    "check_labels_can_be_scored",
    "default_metric",
    "evaluate_predictions",
    "prediction_columns",
]

Metric = Literal["accuracy", "macro_f1", "micro_f1", "roc_auc"]
"""A measure of predictions; higher is better, 1 is perfect."""


def default_metric(task: Task) -> Metric:
    """The measure to choose where the user chose none.

    "roc_auc" for tasks whose classes are seldom balanced: there it must not hang on a threshold.
    """
    return "accuracy" if task == "single-label" else "roc_auc"


def check_labels_can_be_scored(metric: Metric, task: Task, labels: Tensor) -> None:
    """Refuse labels [n] or [n, C], of all vertices that will be measured together, for which a metric means nothing.

    Raises:
        DataError: there are no vertices; a label is unknown (-1); or ROC-AUC is asked for and no class has
            both a vertex that belongs to it and one that does not.
    """
    if len(labels) == 0:
        raise DataError(f"no vertices to measure {metric} on: give the split at least one vertex")
    if task != "multi-label" and int(labels.min()) < 0:
        position = int((labels < 0).nonzero()[0])
        raise DataError(
            f"vertex {position} of {len(labels)} to measure {metric} on has no label "
            f"({int(labels[position])}): leave it out of the split"
        )
    if metric == "roc_auc" and not bool((labels != labels[0]).any()):
        raise DataError(
            f"ROC-AUC has no meaning on {len(labels)} vertices that all have the same label "
            f"({labels[0].tolist()}): choose another split or the metric accuracy"
        )


def evaluate_predictions(metric: Metric, task: Task, logits: Tensor, labels: Tensor) -> float:
    """Measure the predictions of all vertices, gathered in one place.

    - accuracy: share of vertices whose class is right; for "multi-label", share of (vertex, class) pairs.
    - macro_f1: mean F1 score of the classes (both, for "binary"). A class that no vertex has and none is
      predicted to have is left out.
    - micro_f1: F1 score of all (vertex, class) pairs together; for "single-label" the accuracy. "binary": of class 1.
    - roc_auc: mean area under the ROC curve of the classes, each against the rest (for "binary": the one
      area). A class that all vertices have, or none, is left out.

    A vertex is predicted to have the class with the largest logit, or each class with a logit above 0.

    Args:
        metric: what to measure.
        task: of the graph.
        logits: [n, C], or [n] or [n, 1] for "binary".
        labels: [n] int64, or [n, C] of 0 and 1 for "multi-label"; on the device of `logits`.

    Returns:
        A number between 0 and 1.

    Raises:
        DataError: as `check_labels_can_be_scored`, or a logit is NaN or infinite: the training diverged.
    """
    check_labels_can_be_scored(metric, task, labels)
    lost = _diverged(logits)
    if len(lost):
        raise DataError(
            f"the prediction for vertex {int(lost[0])} of {len(logits)} is NaN or infinite: "
            "the training diverged; lower the learning rate"
        )
    multi = task == "multi-label"
    targets = (labels if multi else F.one_hot(labels, 2 if task == "binary" else logits.shape[1])) > 0
    scores = _score_columns(task, logits)
    if metric == "roc_auc":
        # The two areas of a binary task are the same.
        return _roc_auc(scores[:, 1:], targets[:, 1:]) if task == "binary" else _roc_auc(scores, targets)
    predictions = scores > 0 if multi else F.one_hot(scores.argmax(1), scores.shape[1]) > 0
    if metric in ("macro_f1", "micro_f1"):
        return _f1(predictions, targets, task, macro=metric == "macro_f1")
    right = predictions == targets if multi else (predictions & targets).any(1)
    return float(right.sum() / right.numel())


def _score_columns(task: Task, logits: Tensor) -> Tensor:
    # Double precision keeps apart what single precision would round to the same probability.
    exact = logits.detach().double()
    if task == "single-label":
        return exact.log_softmax(1)
    if task == "binary":
        # Ties go to class 0, the first of equal columns: class 1 needs a logit above 0.
        exact = exact.reshape(-1)
        return torch.stack([-exact, exact], 1)
    return exact


def _f1(predictions: Tensor, targets: Tensor, task: Task, *, macro: bool) -> float:
    right = (predictions & targets).sum(0).double()
    predicted_and_true = predictions.sum(0) + targets.sum(0)
    if not macro:
        first = 1 if task == "binary" else 0
        right, predicted_and_true = right[first:].sum(0, keepdim=True), predicted_and_true[first:].sum(0, keepdim=True)
    occurs = predicted_and_true > 0
    # Where there is no class to find and none is predicted, every prediction is right.
    return float((2 * right / predicted_and_true)[occurs].mean()) if occurs.any() else 1.0


def _roc_auc(scores: Tensor, targets: Tensor) -> float:
    from torchmetrics.functional.classification import binary_auroc

    areas = []
    for column in (targets.any(0) & ~targets.all(0)).nonzero().flatten().tolist():
        # Ranks between 0 and 1 have the same curve as the scores, and torchmetrics takes them as they are: it
        # would squash logits by a sigmoid, which rounds large ones to the same value.
        ranks = torch.unique(scores[:, column], return_inverse=True)[1].double() / len(scores)
        areas.append(float(binary_auroc(ranks, targets[:, column].long())))
    return sum(areas) / len(areas)


def prediction_columns(task: Task, logits: Tensor) -> dict[str, Tensor]:
    """Turn logits, [n, C] on the CPU, or [n] or [n, 1] for "binary", into predictions.

    Returns:
        By column: "prediction" int32 [n] is the class with the largest logit, the first of equal ones, as metrics
        count it; "probability" float32 [n]; "probabilities" float32 [n, C].
    """
    # Single precision would lose digits of a probability that is close to 1.
    exact = logits.double()
    if task == "binary":
        return {"probability": exact.reshape(-1).sigmoid().float()}
    if task == "multi-label":
        return {"probabilities": exact.sigmoid().float()}
    prediction = logits.argmax(1, keepdim=True)
    probability = exact.softmax(1).gather(1, prediction)
    return {"prediction": prediction.flatten().to(torch.int32), "probability": probability.flatten().float()}


def check_finite(vertices: Tensor, logits: Tensor) -> None:
    """Refuse outputs [n] or [n, C] that are NaN or infinite: DataError with the first vertex, of the user's ids [n]."""
    lost = _diverged(logits)
    if len(lost):
        raise DataError(
            f"the prediction for vertex {int(vertices[lost[0]])} is NaN or infinite: the training diverged; predict "
            "with an earlier checkpoint (--checkpoint best), or train again with a lower learning rate"
        )


def _diverged(logits: Tensor) -> Tensor:
    """Rows in which a logit is NaN or infinite."""
    return (~logits.isfinite().reshape(len(logits), -1).all(1)).nonzero().flatten()

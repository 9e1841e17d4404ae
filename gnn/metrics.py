"""Metrics (accuracy, macro-F1, micro-F1, ROC-AUC; of real numbers RMSE, MAE, R2), and predictions as columns.

Logits are [n, C] for "single-label" and "multi-label", and [n] or [n, 1] for "binary", where they speak for
class 1; for "regression" they are the numbers themselves, [n, C]. Labels are as in `windrow.gnn.graph.Graph`. Each task
of classes is scored column by column, a class each::

    single-label    labels  2 0       columns  0 0 1  1 0 0    scores: log-probability of each class
    multi-label     as they are, say           1 0 1  0 0 1    scores: logits
    binary          labels  1 0       columns  0 1    1 0      scores: minus logit, logit

Nothing here communicates.
"""

from collections.abc import Mapping
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from windrow.comm.errors import DataError, RecipeError
from windrow.gnn.graph import Task, known_labels
from windrow.training.task import is_one_each

__all__ = [
    "LOWER_IS_BETTER",
    "METRICS_OF",
    "Metric",
    "check_finite",
    "check_labels_can_be_scored",
    "check_outputs",
    "evaluate_predictions",
    "prediction_columns",
]

Metric = Literal["accuracy", "macro_f1", "micro_f1", "roc_auc", "rmse", "mae", "r2"]
"""A measure of predictions."""

METRICS_OF: Mapping[Task, tuple[Metric, ...]] = {
    "single-label": ("accuracy", "macro_f1", "micro_f1", "roc_auc"),
    "binary": ("roc_auc", "accuracy", "macro_f1", "micro_f1"),
    "multi-label": ("roc_auc", "accuracy", "macro_f1", "micro_f1"),
    "regression": ("rmse", "mae", "r2"),
}
"""Those that each task has. The first is chosen where none is: one without a threshold where classes are seldom
balanced."""

LOWER_IS_BETTER = ("rmse", "mae")
"""0 is perfect; of all others, 1 is."""


def check_labels_can_be_scored(metric: Metric, labels: Tensor) -> None:
    """Refuse labels [n] or [n, C], of all vertices that will be measured together, for which a metric means nothing.

    DataError: there are no vertices; a label is unknown; or ROC-AUC or R2 is asked for and all labels are the same.
    """
    if len(labels) == 0:
        raise DataError(f"no vertices to measure {metric} on: give the split at least one vertex")
    unknown = (~known_labels(labels)).nonzero()
    if len(unknown):
        position = int(unknown[0])
        raise DataError(
            f"vertex {position} of {len(labels)} to measure {metric} on has no label "
            f"({labels[position].tolist()}): leave it out of the split"
        )
    if metric in ("roc_auc", "r2") and not bool((labels != labels[0]).any()):
        name, other = ("ROC-AUC", "accuracy") if metric == "roc_auc" else ("R2", "rmse")
        raise DataError(
            f"{name} has no meaning on {len(labels)} vertices that all have the same label "
            f"({labels[0].tolist()}): choose another split or the metric {other}"
        )


def evaluate_predictions(metric: Metric, task: Task, logits: Tensor, labels: Tensor) -> float:
    """Measure the predictions of all vertices, gathered in one place.

    - accuracy: share of vertices whose class is right; for "multi-label", share of (vertex, class) pairs.
    - macro_f1: mean F1 score of the classes (both, for "binary"). A class that no vertex has and none is
      predicted to have is left out.
    - micro_f1: F1 score of all (vertex, class) pairs together; for "single-label" the accuracy. "binary": of class 1.
    - roc_auc: mean area under the ROC curve of the classes, each against the rest (for "binary": the one
      area). A class that all vertices have, or none, is left out.
    - rmse, mae: root of the mean squared error, and mean absolute error, of all numbers together.
    - r2: mean over the columns of 1 minus the squared errors over those of the mean. A column of one value is left out.

    A vertex is predicted to have the class with the largest logit, or each class with a logit above 0.

    Logits and labels are on one device. DataError as of `check_labels_can_be_scored`, or where a logit is NaN or
    infinite: the training diverged; RecipeError where they are not as many as labels that have one each.
    """
    check_labels_can_be_scored(metric, labels)
    lost = _diverged(logits)
    if len(lost):
        raise DataError(
            f"the prediction for vertex {int(lost[0])} of {len(logits)} is NaN or infinite: "
            "the training diverged; lower the learning rate"
        )
    check_outputs(task, logits, labels)
    if task == "regression":
        return _real_measure(metric, logits.detach().double().reshape(labels.shape), labels.double())
    multi = task == "multi-label"
    targets = (labels if multi else F.one_hot(labels, 2 if task == "binary" else logits.shape[1])) > 0
    scores = _score_columns(task, logits)
    # The two areas of a binary task are the same, and its micro-F1 is that of class 1.
    first = 1 if task == "binary" else 0
    if metric == "roc_auc":
        return _roc_auc(scores[:, first:], targets[:, first:])
    predictions = scores > 0 if multi else F.one_hot(scores.argmax(1), scores.shape[1]) > 0
    if metric == "macro_f1":
        return _f1(predictions, targets)
    if metric == "micro_f1":
        return _f1(predictions[:, first:].reshape(-1, 1), targets[:, first:].reshape(-1, 1))
    right = predictions == targets if multi else (predictions & targets).any(1)
    return float(right.sum() / right.numel())


def _real_measure(metric: Metric, numbers: Tensor, labels: Tensor) -> float:
    error = numbers - labels
    if metric == "rmse":
        return float(error.square().mean().sqrt())
    if metric == "mae":
        return float(error.abs().mean())
    spread = (labels - labels.mean(0)).square().sum(0)
    varies = (labels != labels[0]).any(0)
    return float((1 - error.square().sum(0) / spread)[varies].mean())


def check_outputs(task: Task, outputs: Tensor, labels: Tensor) -> None:
    """Refuse outputs that are not as many as labels, of tasks where each label has one: RecipeError."""
    if task != "single-label" and not is_one_each(outputs, labels):
        raise RecipeError(
            f"the model gives outputs of shape {list(outputs.shape)} for labels of shape {list(labels.shape)} of a "
            f"{task} task: give one for each label (part.num_outputs for each vertex; two classes are one logit), or a "
            "loss and metrics of your own"
        )


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


def _f1(predictions: Tensor, targets: Tensor) -> float:
    """Mean of the columns."""
    both, either = (predictions & targets).sum(0).double(), predictions.sum(0) + targets.sum(0)
    # Where there is no class to find and none is predicted, every prediction is right.
    return float((2 * both / either)[either > 0].mean()) if either.any() else 1.0


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
    """Turn logits on the CPU into the columns that are written for users.

    "single-label" has "prediction" int32 [n], the class with the largest logit, the first of equal ones, as metrics
    count it, and its "probability" float32 [n]; "binary" the "probability" of class 1; "multi-label" "probabilities"
    float32 [n, C]; "regression" the "prediction" float32 [n], or "predictions" [n, C] where there are several.
    """
    if task == "regression":
        numbers = logits.float()
        return {"prediction": numbers.flatten()} if numbers.shape[1] == 1 else {"predictions": numbers}
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

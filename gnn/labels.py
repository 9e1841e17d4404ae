"""What is to be predicted: the task, read off the labels where the user does not state it."""

from typing import Literal, cast

import numpy as np
import numpy.typing as npt
from torch import Tensor, from_numpy

from windrow.comm.errors import DataError, RecipeError
from windrow.gnn.graph import Task

__all__ = ["TaskOption", "prepare_labels"]

TaskOption = Literal["auto", "single-label", "binary", "multi-label"]
"""A task, or "auto" to read it off the labels."""

UNKNOWN = -1


def prepare_labels(
    labels: Tensor | npt.NDArray[np.generic], task: TaskOption = "auto"
) -> tuple[Tensor, Task, int]:
    """Bring labels to the form that `windrow.gnn.graph.Graph` holds.

    With "auto", several columns mean "multi-label", one column with no class above 1 means "binary", and any
    other means "single-label".

    Args:
        labels: [N] or [N, 1] class numbers from 0, where -1 or NaN is an unknown label; or [N, C] of 0 and 1.
        task: what the labels mean.

    Returns:
        (labels int64 [N] or float32 [N, C], task, number of classes).

    Raises:
        DataError: labels are no whole numbers, contradict the task, or are all unknown.
        RecipeError: the task is unknown.
    """
    if task not in ("auto", "single-label", "binary", "multi-label"):
        raise RecipeError(f"task is {task!r}; use 'auto', 'single-label', 'binary' or 'multi-label'.")
    array = labels.detach().cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    if array.dtype.kind not in "biuf":
        raise DataError(f"labels have dtype {array.dtype}; number the classes 0, 1, 2, ...")
    if task == "multi-label" or (task == "auto" and array.ndim == 2 and array.shape[1] > 1):
        return _multi_label(array)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise DataError(f"labels have shape {array.shape}; task {task!r} needs one label per vertex, [N].")
    classes = _class_numbers(array)
    largest = int(classes.max(initial=UNKNOWN))
    if largest == UNKNOWN:
        raise DataError("every label is unknown; give at least the training vertices a class from 0.")
    if task == "binary" and largest > 1:
        vertex = int(np.flatnonzero(classes > 1)[0])
        raise DataError(
            f"the label of vertex {vertex} is {classes[vertex]}; in task 'binary' a label is 0 or 1. Use "
            "task 'single-label' for more classes."
        )
    if task == "binary" or (task == "auto" and largest <= 1):
        return from_numpy(classes), "binary", 2
    return from_numpy(classes), "single-label", largest + 1


def _multi_label(array: npt.NDArray[np.generic]) -> tuple[Tensor, Task, int]:
    if array.ndim != 2:
        raise DataError(
            f"labels have shape {array.shape}; task 'multi-label' needs 0 or 1 per class, [N, C]."
        )
    return from_numpy(np.ascontiguousarray(array, dtype=np.float32)), "multi-label", int(array.shape[1])


def _class_numbers(array: npt.NDArray[np.generic]) -> npt.NDArray[np.int64]:
    if array.dtype.kind != "f":
        return np.ascontiguousarray(array, dtype=np.int64)
    values = cast("npt.NDArray[np.floating]", array)
    known = np.where(np.isnan(values), UNKNOWN, values)
    fractional = np.flatnonzero(~np.isfinite(known) | (known != np.floor(known)))
    if fractional.size:
        vertex = int(fractional[0])
        raise DataError(
            f"the label of vertex {vertex} is {values[vertex]}; a class is a whole number. Number the "
            "classes 0, 1, 2, ..."
        )
    return known.astype(np.int64)

"""The task, read off the labels."""

import numpy as np
import pytest
import torch

from windrow.comm.errors import DataError, RecipeError
from windrow.gnn.vertex_data import prepare_labels


@pytest.mark.parametrize(
    ("labels", "task", "num_classes"),
    [
        (np.array([0, 1, 1], dtype=np.int16), "binary", 2),
        (np.array([0, 0, 0]), "binary", 2),
        (np.array([0, 2, -1]), "single-label", 3),
        (np.array([[0], [4]]), "single-label", 5),
        (np.array([False, True]), "binary", 2),
        (torch.tensor([[0, 1, 1], [1, 0, 0]]), "multi-label", 3),
    ],
)
def test_auto(labels: np.ndarray, task: str, num_classes: int) -> None:
    prepared, found, classes = prepare_labels(labels)
    assert (found, classes) == (task, num_classes)
    assert prepared.dtype == (torch.float32 if task == "multi-label" else torch.int64)


def test_a_stated_task_wins() -> None:
    assert prepare_labels(np.array([0, 1]), "single-label")[1:] == ("single-label", 2)
    assert prepare_labels(np.array([[0], [1]]), "multi-label")[1:] == ("multi-label", 1)


def test_nan_is_unknown() -> None:
    assert prepare_labels(np.array([0.0, np.nan, 2.0]))[0].tolist() == [0, -1, 2]


@pytest.mark.parametrize(
    ("labels", "task", "message"),
    [
        (np.array(["a"]), "auto", "labels have dtype <U1; number the classes 0, 1, 2, ..."),
        (np.array([0.0, 1.5]), "auto", "the label of vertex 1 is 1.5; a class is a whole number"),
        (np.array([0.0, np.inf]), "auto", "the label of vertex 1 is inf; a class is a whole number"),
        (np.array([0, 1, 2]), "binary", "the label of vertex 2 is 2; in task 'binary' a label is 0 or 1"),
        (np.array([-1, -1]), "auto", "every label is unknown; give at least the training vertices a class"),
        (
            np.array([0, 1]),
            "multi-label",
            "labels have shape (2,); task 'multi-label' needs 0 or 1 per class",
        ),
        (
            np.zeros((2, 2)),
            "single-label",
            "labels have shape (2, 2); task 'single-label' needs one label per",
        ),
    ],
)
def test_contradictions_are_refused(labels: np.ndarray, task: str, message: str) -> None:
    with pytest.raises(DataError) as caught:
        prepare_labels(labels, task)
    assert message in str(caught.value)


def test_an_unknown_task_is_refused() -> None:
    with pytest.raises(RecipeError, match="task is 'multiclass'; use 'auto'"):
        prepare_labels(np.array([0, 1]), "multiclass")

"""Features, labels and splits of vertices, prepared from what a data set gives.

Features become dense, and come to a common scale on request. The task is read off the labels where the user does not
state it. A data set without a split gets a random one into training, validation and test vertices.
"""

from collections.abc import Callable
from typing import Annotated, Literal, NamedTuple, cast, get_args

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field
from torch import Tensor, from_numpy

from windrow.comm.errors import DataError, RecipeError
from windrow.comm.options import NonNegativeInt, PositiveInt, Share, checked_dataclass
from windrow.comm.random import Stream, hash_ids, stream_key
from windrow.gnn.graph import Task, known_labels

__all__ = [
    "SplitOptions",
    "Standardise",
    "TaskOption",
    "VertexSplit",
    "dense_features",
    "float_features",
    "prepare_labels",
    "random_split",
    "scale_features",
    "split_from_masks",
    "standardise_features",
]

Standardise = Literal["none", "standard", "rows"]
"""As they are; each column to mean 0 and variance 1; or each row divided by the sum of its magnitudes."""

COLUMNS_PER_CHUNK = 64


def float_features(values: Tensor | npt.NDArray[np.generic], name: str = "features") -> Tensor:
    """Turn numbers [N, F], or [N] for one feature, into float32 [N, F]: DataError, with `name`, where they are none."""
    if not isinstance(values, Tensor):
        if values.dtype.kind not in "biuf":
            raise DataError(f"{name} have dtype {values.dtype}; convert them to numbers.")
        if values.dtype in (np.uint16, np.uint32, np.uint64):
            values = values.astype(np.float32)
        values = torch.from_numpy(np.ascontiguousarray(values))
    if values.is_complex():
        raise DataError(f"{name} have dtype {values.dtype}; convert them to numbers.")
    values = values.detach().to_dense().to(torch.float32)
    return values.unsqueeze(1) if values.dim() == 1 else values.contiguous()


def dense_features(
    indptr: npt.NDArray[np.integer],
    indices: npt.NDArray[np.integer],
    values: npt.NDArray[np.generic],
    shape: tuple[int, int],
) -> Tensor:
    """Fill in the zeros of a sparse matrix stored by row (CSR); DataError where the arrays do not fit the shape."""
    if indptr[:1].any():
        raise DataError(f"the offsets of the sparse features begin at {indptr[0]}, not at 0: write the matrix again")
    try:
        per_row = torch.from_numpy(indptr.astype(np.int64)).diff()
        rows = torch.arange(shape[0]).repeat_interleave(per_row)
        places = torch.stack([rows, torch.from_numpy(indices.astype(np.int64))])
        entries = torch.from_numpy(values.astype(np.float32))
        return torch.sparse_coo_tensor(places, entries, shape, check_invariants=True).to_dense()
    except RuntimeError as error:
        raise DataError(
            f"the sparse features of shape {shape} are inconsistent: {error}. Write the matrix again, for example "
            "with scipy.sparse.csr_matrix."
        ) from error


def standardise_features(features: Tensor, how: Standardise) -> Tensor | None:
    """Bring features, floats [N, F], to a common scale, in place: they may fill most of the memory.

    "none" leaves them unchanged. "standard" gives each column mean 0 and variance 1; a constant column becomes 0.
    "rows" divides each row by the sum of its magnitudes, as is usual for bags of words; a row of zeros stays.
    Statistics are taken over all vertices, those of the test split included: features of every vertex are known while
    training (transductive learning), and only their labels are hidden.

    Returns:
        With "standard", float64 [2, F]: the means, and the deviations, infinite for a constant column. See
        `scale_features`.
    """
    if how == "standard":
        scaling = torch.empty((2, features.shape[1]), dtype=torch.float64)
        for start in range(0, features.shape[1], COLUMNS_PER_CHUNK):
            columns = features[:, start : start + COLUMNS_PER_CHUNK]
            variance, mean = torch.var_mean(columns.double(), dim=0, correction=0)
            constant = columns.amin(dim=0) == columns.amax(dim=0)
            scaling[:, start : start + COLUMNS_PER_CHUNK] = torch.stack(
                [mean, variance.sqrt().masked_fill(constant, torch.inf)]
            )
        scale_features(features, scaling)
        return scaling
    if how == "rows":
        sums = torch.linalg.vector_norm(features, ord=1, dim=1, keepdim=True)
        features.div_(torch.where(sums > 0, sums, 1.0))
    return None


def scale_features(features: Tensor, scaling: Tensor, *, back: bool = False) -> None:
    """Subtract means and divide by deviations, as `standardise_features` returns them, in place; or undo that.

    A column that is constant where the deviation comes from becomes 0, whatever it is here: nothing was learnt of it.
    """
    for start in range(0, features.shape[1], COLUMNS_PER_CHUNK):
        columns = features[:, start : start + COLUMNS_PER_CHUNK]
        mean, deviation = scaling[:, start : start + COLUMNS_PER_CHUNK]
        if back:
            columns.copy_(torch.where(deviation.isinf(), mean, columns * deviation + mean))
        else:
            columns.copy_((columns - mean) / deviation)


TaskOption = Literal["auto", "single-label", "binary", "multi-label", "regression"]
"""A task, or "auto" to read it off the labels."""

UNKNOWN_LABEL = -1


def prepare_labels(
    labels: Tensor | npt.NDArray[np.generic], task: TaskOption = "auto", *, largest_of_all: Callable[[int], int] = int
) -> tuple[Tensor, Task, int]:
    """Bring labels to the form that `windrow.gnn.graph.Graph` holds.

    Args:
        labels: [N] or [N, 1] class numbers from 0, where -1 or NaN is an unknown label; [N, C] of 0 and 1; or, for
            "regression", real numbers [N] or [N, C], where NaN is unknown.
        task: what they mean. With "auto", labels with a fraction mean "regression", several columns "multi-label", one
            column with no class above 1 "binary", and any other "single-label".
        largest_of_all: given the largest class here, that of the whole graph, where these are some of its vertices.

    Returns:
        (labels int64 [N] or float32 [N, C], task, number of classes or, for "regression", of columns).

    Raises:
        DataError: labels contradict the task, or are all unknown.
        RecipeError: the task is unknown.
    """
    if task not in get_args(TaskOption):
        raise RecipeError(f"task is {task!r}; use one of {', '.join(get_args(TaskOption))}.")
    array = labels.detach().cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    if array.dtype.kind not in "biuf":
        raise DataError(f"labels have dtype {array.dtype}; number the classes 0, 1, 2, ...")
    if task == "auto":
        if largest_of_all(int(_fractional(array).any())):
            task = "regression"
        elif array.ndim == 2 and array.shape[1] > 1:
            task = "multi-label"
    if task == "regression":
        numbers = _real_numbers(array)
        if not largest_of_all(int((~numbers.isnan()).any())):
            raise DataError("every label is NaN, which is unknown; give at least the training vertices a number.")
        return numbers, task, numbers.shape[1]
    if task == "multi-label":
        if array.ndim != 2:
            raise DataError(f"labels have shape {array.shape}; task 'multi-label' needs 0 or 1 per class, [N, C].")
        return from_numpy(np.ascontiguousarray(array, dtype=np.float32)), task, int(array.shape[1])
    return _classes(array, task, largest_of_all)


def _classes(
    array: npt.NDArray[np.generic], task: TaskOption, largest_of_all: Callable[[int], int]
) -> tuple[Tensor, Task, int]:
    """Labels that are one class each."""
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise DataError(f"labels have shape {array.shape}; task {task!r} needs one label per vertex, [N].")
    classes = _class_numbers(array)
    if task == "binary" and classes.max(initial=UNKNOWN_LABEL) > 1:
        vertex = int(np.flatnonzero(classes > 1)[0])
        raise DataError(
            f"the label of vertex {vertex} is {classes[vertex]}; in task 'binary' a label is 0 or 1. Use "
            "task 'single-label' for more classes."
        )
    largest = largest_of_all(int(classes.max(initial=UNKNOWN_LABEL)))
    if largest == UNKNOWN_LABEL:
        raise DataError("every label is unknown; give at least the training vertices a class from 0.")
    if task == "binary" or (task == "auto" and largest <= 1):
        return from_numpy(classes), "binary", 2
    return from_numpy(classes), "single-label", largest + 1


def _class_numbers(array: npt.NDArray[np.generic]) -> npt.NDArray[np.int64]:
    if array.dtype.kind != "f":
        return np.ascontiguousarray(array, dtype=np.int64)
    values = cast("npt.NDArray[np.floating]", array)
    known = np.where(np.isnan(values), UNKNOWN_LABEL, values)
    wrong = np.flatnonzero(np.isinf(known) | _fractional(known))
    if wrong.size:
        vertex = int(wrong[0])
        raise DataError(
            f"the label of vertex {vertex} is {values[vertex]}; a class is a whole number. Number the "
            "classes 0, 1, 2, ..., or use task 'regression' for real numbers."
        )
    return known.astype(np.int64)


def _fractional(array: npt.NDArray[np.generic]) -> npt.NDArray[np.bool_]:
    """Which numbers are not whole; what is infinite or NaN counts as whole."""
    if array.dtype.kind != "f":
        return np.zeros(array.shape, dtype=np.bool_)
    values = cast("npt.NDArray[np.floating]", array)
    fractional: npt.NDArray[np.bool_] = np.isfinite(values) & (values != np.floor(values))
    return fractional


def _real_numbers(array: npt.NDArray[np.generic]) -> Tensor:
    """Labels of "regression", float32 [N, C]."""
    if array.ndim not in (1, 2):
        raise DataError(f"labels have shape {array.shape}; task 'regression' needs one or more numbers per vertex.")
    numbers = float_features(array, "labels")
    infinite = numbers.isinf().any(1).nonzero()
    if len(infinite):
        vertex = int(infinite[0])
        raise DataError(
            f"the label of vertex {vertex} is {array[vertex]}, infinite in single precision; correct it, or write NaN "
            "where it is unknown."
        )
    return numbers


@checked_dataclass
class SplitOptions:
    """How vertices are shared out among the three splits."""

    kind: Literal["auto", "per-class", "fractions"] = "auto"
    """"per-class": so many of each class, all others are test vertices, as is usual for citation and
    co-author graphs (Shchur et al., Pitfalls of Graph Neural Network Evaluation, 2018); "fractions": shares
    of all labelled vertices, whatever their class; "auto": per-class where a vertex has one class."""
    train_per_class: PositiveInt = 20
    """Training vertices of each class, with kind "per-class"."""
    validation_per_class: NonNegativeInt = 30
    """Validation vertices of each class, with kind "per-class"."""
    train_fraction: Annotated[float, Field(gt=0, le=1)] = 0.5
    """Share of the labelled vertices that train, with kind "fractions"; above 0."""
    validation_fraction: Share = 0.25
    """Share of the labelled vertices that validate, with kind "fractions"; the rest are test vertices."""

    def __post_init__(self) -> None:
        train, validation = self.train_fraction, self.validation_fraction
        if train + validation > 1:
            raise RecipeError(
                f"train_fraction is {train} and validation_fraction {validation}; use shares that together make at "
                "most 1."
            )


class VertexSplit(NamedTuple):
    """Three disjoint lists of vertices, int64; those that this package makes ascend."""

    train_ids: Tensor
    """Vertices whose labels are learnt from."""
    validation_ids: Tensor
    """Vertices that choose the best epoch."""
    test_ids: Tensor
    """Vertices that are only ever measured on."""


def random_split(labels: Tensor, options: SplitOptions, *, seed: int) -> VertexSplit:
    """Share the labelled vertices out at random, by a hash of (seed, vertex) alone, in disjoint ascending lists.

    Labels are int64 [N] with -1 for unknown, or float [N, C] with NaN for unknown, which have no class: kind
    "per-class" raises RecipeError.
    DataError: a class has too few vertices.
    """
    values = labels.numpy()
    labelled = np.flatnonzero(known_labels(labels).numpy())
    draws = hash_ids(stream_key(seed, Stream.SPLIT), labelled)
    shuffled = labelled[np.argsort(draws, kind="stable")]
    if options.kind == "fractions" or (options.kind == "auto" and values.ndim == 2):
        place, train = np.arange(len(shuffled)), round(len(shuffled) * options.train_fraction)
        needed = round(len(shuffled) * (options.train_fraction + options.validation_fraction))
    elif values.ndim == 2:
        raise RecipeError(
            "a split of kind 'per-class' needs one class per vertex, but these labels are several or real numbers; use "
            "kind 'fractions'."
        )
    else:
        train, needed = options.train_per_class, options.train_per_class + options.validation_per_class
        counts = np.bincount(values[shuffled])
        for number, count in enumerate(counts.tolist()):
            if 0 < count < needed:
                raise DataError(
                    f"class {number} has {count} labelled vertices, but the split takes {needed} of each class "
                    f"({options.train_per_class} to train, {options.validation_per_class} to validate); take "
                    "fewer, or use a split of kind 'fractions'."
                )
        shuffled = shuffled[np.argsort(values[shuffled], kind="stable")]
        place = np.arange(len(shuffled)) - np.repeat(np.cumsum(counts) - counts, counts)
    parts = place < train, (place >= train) & (place < needed), place >= needed
    return VertexSplit(*(torch.from_numpy(np.sort(shuffled[part])) for part in parts))


def split_from_masks(train: Tensor, validation: Tensor, test: Tensor) -> VertexSplit:
    """Turn three boolean masks [N] into lists of the ids where each is true."""
    return VertexSplit(*(mask.to(torch.bool).nonzero().flatten() for mask in (train, validation, test)))

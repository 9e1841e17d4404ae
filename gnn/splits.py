"""Random splits into training, validation and test vertices, for data sets that come without one."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from windrow.comm.errors import DataError, RecipeError
from windrow.comm.random import Stream, hash_ids, stream_key

__all__ = ["SplitOptions", "VertexSplit", "random_split", "split_from_masks"]


@dataclass(frozen=True, kw_only=True, slots=True)
class SplitOptions:
    """How vertices are shared out among the three splits."""

    kind: Literal["per-class", "fractions"] = "per-class"
    """"per-class": so many of each class, all others are test vertices, as is usual for citation and
    co-author graphs (Shchur et al., Pitfalls of Graph Neural Network Evaluation, 2018); "fractions": shares
    of all labelled vertices, whatever their class."""
    train_per_class: int = 20
    """Training vertices of each class, with kind "per-class"."""
    validation_per_class: int = 30
    """Validation vertices of each class, with kind "per-class"."""
    train_fraction: float = 0.5
    """Share of the labelled vertices that train, with kind "fractions"; above 0."""
    validation_fraction: float = 0.25
    """Share of the labelled vertices that validate, with kind "fractions"; the rest are test vertices."""

    def __post_init__(self) -> None:
        """Refuse counts and shares that leave no split.

        Raises:
            RecipeError: a value is out of range; the message names it.
        """
        if self.kind not in ("per-class", "fractions"):
            raise RecipeError(f"kind is {self.kind!r}; use 'per-class' or 'fractions'.")
        if self.train_per_class < 1 or self.validation_per_class < 0:
            raise RecipeError(
                f"train_per_class is {self.train_per_class} and validation_per_class "
                f"{self.validation_per_class}; use at least 1 and at least 0."
            )
        train, validation = self.train_fraction, self.validation_fraction
        if not (train > 0 and validation >= 0 and train + validation <= 1):
            raise RecipeError(
                f"train_fraction is {train} and validation_fraction {validation}; use a share above 0 and "
                "one of at least 0 that together make at most 1."
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class VertexSplit:
    """Three disjoint lists of vertices."""

    train_ids: Tensor
    """int64, ascending."""
    validation_ids: Tensor
    """int64, ascending."""
    test_ids: Tensor
    """int64, ascending."""

    @staticmethod
    def empty() -> "VertexSplit":
        """Three empty lists, for a graph without labels."""
        nothing = torch.empty(0, dtype=torch.int64)
        return VertexSplit(train_ids=nothing, validation_ids=nothing, test_ids=nothing)


def random_split(labels: Tensor, options: SplitOptions, *, seed: int) -> VertexSplit:
    """Share the labelled vertices out at random.

    Vertex v is ranked by a hash of (seed, v), so the split depends on nothing else.

    Args:
        labels: int64 [N] with -1 for unknown, or float [N, C] (kind "fractions" only).
        options: how many go where.
        seed: another seed gives another split.

    Returns:
        Disjoint ascending lists that cover every labelled vertex.

    Raises:
        RecipeError: kind "per-class" for labels with several classes per vertex.
        DataError: a class has too few vertices.

    Cost:
        One sort of N numbers.
    """
    values = labels.numpy()
    labelled = np.arange(len(values)) if values.ndim == 2 else np.flatnonzero(values >= 0)
    draws = hash_ids(stream_key(seed, Stream.SPLIT), labelled)
    shuffled = labelled[np.argsort(draws, kind="stable")]
    if options.kind == "fractions":
        train = round(len(shuffled) * options.train_fraction)
        validation = round(len(shuffled) * (options.train_fraction + options.validation_fraction))
        return _ascending(shuffled[:train], shuffled[train:validation], shuffled[validation:])
    if values.ndim == 2:
        raise RecipeError(
            "a split of kind 'per-class' needs one class per vertex, but this graph is multi-label; use kind "
            "'fractions'."
        )
    return _per_class(shuffled, values, options)


def split_from_masks(train: Tensor, validation: Tensor, test: Tensor) -> VertexSplit:
    """Turn three masks into lists of ids.

    Args:
        train: boolean [N].
        validation: boolean [N].
        test: boolean [N].

    Returns:
        The ids where each is true.
    """
    lists = [mask.to(torch.bool).nonzero().flatten() for mask in (train, validation, test)]
    return VertexSplit(train_ids=lists[0], validation_ids=lists[1], test_ids=lists[2])


def _per_class(
    shuffled: npt.NDArray[np.int64], labels: npt.NDArray[np.int64], options: SplitOptions
) -> VertexSplit:
    needed = options.train_per_class + options.validation_per_class
    counts = np.bincount(labels[shuffled])
    for number, count in enumerate(counts.tolist()):
        if 0 < count < needed:
            raise DataError(
                f"class {number} has {count} labelled vertices, but the split takes {needed} of each class "
                f"({options.train_per_class} to train, {options.validation_per_class} to validate); take "
                "fewer, or use a split of kind 'fractions'."
            )
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    place_in_class = np.arange(len(by_class)) - np.repeat(np.cumsum(counts) - counts, counts)
    return _ascending(
        by_class[place_in_class < options.train_per_class],
        by_class[(place_in_class >= options.train_per_class) & (place_in_class < needed)],
        by_class[place_in_class >= needed],
    )


def _ascending(*lists: npt.NDArray[np.int64]) -> VertexSplit:
    train, validation, test = (torch.from_numpy(np.sort(ids)) for ids in lists)
    return VertexSplit(train_ids=train, validation_ids=validation, test_ids=test)

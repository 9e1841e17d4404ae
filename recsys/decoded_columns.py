"""The samples of a row group as NumPy arrays, from columns that Arrow decoded: transformed, and shared in groups."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from windrow.comm.errors import RecipeError
from windrow.recsys.id_lists import IdLists, lists_of_single_ids
from windrow.recsys.repeats import RunLists, one_chunk, runs_of_column, runs_of_group
from windrow.recsys.shared_lists import DistinctRows, SharedGroups, distinct_rows
from windrow.recsys.store import DENSE_COLUMN, LABEL_COLUMN, SESSION_COLUMN, WEIGHTS_SUFFIX
from windrow.recsys.store_manifest import FeatureEntry
from windrow.recsys.transforms.transforms import Transforms

__all__ = ["ColumnChoice", "RowGroup", "decoded"]

FEW_RUNS = 0.5
"""Share of samples that begin a run, up to which neighbours are taken to have most of the repeats."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ColumnChoice:
    """What is read of each sample beside its label, and what is done to it.

    Attributes:
        features: of the store, all of them.
        num_dense: dense values of a sample.
        groups: names of features that are held as distinct lists; may be none.
        transforms: what is done to ids; its features are those that come out. None: those of the store, unaltered.
        transform_once: transform distinct lists of a group alone; without, all lists before they are compared.
        sessions: read session ids.
    """

    features: tuple[FeatureEntry, ...]
    num_dense: int
    groups: tuple[tuple[str, ...], ...] = ()
    transforms: Transforms | None = None
    transform_once: bool = True
    sessions: bool = False

    @property
    def given(self) -> tuple[FeatureEntry, ...]:
        """Features that come out."""
        return self.features if self.transforms is None else self.transforms.features

    @property
    def plain(self) -> tuple[FeatureEntry, ...]:
        """Features that come out and are in no group, in their order."""
        grouped = {name for group in self.groups for name in group}
        return tuple(feature for feature in self.given if feature.name not in grouped)

    def is_weighted(self, group: Sequence[str]) -> bool:
        """Whether any feature of a group has weights."""
        return any(feature.weighted for feature in self.given if feature.name in group)

    def check_groups(self) -> None:
        """Refuse groups that cannot be.

        Raises:
            RecipeError: a group without features, an unknown feature, or one that is named twice.
        """
        known = [feature.name for feature in self.given]
        seen: set[str] = set()
        for group in self.groups:
            if not group:
                raise RecipeError("deduplication.groups holds an empty group: name its features or remove it")
            for name in group:
                if name not in known:
                    raise RecipeError(
                        f"deduplication.groups names {name!r}, which is no feature of the log: known are "
                        f"{', '.join(known)}"
                    )
                if name in seen:
                    raise RecipeError(f"deduplication.groups names {name!r} twice: a feature is in one group")
                seen.add(name)

    def columns(self) -> list[str]:
        """Columns of the store that are read."""
        names = [LABEL_COLUMN] + [DENSE_COLUMN] * (self.num_dense > 0) + [SESSION_COLUMN] * self.sessions
        for feature in self.features:
            names += [feature.name] + [feature.name + WEIGHTS_SUFFIX] * feature.weighted
        return names


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Consecutive samples, in the memory that Arrow decoded them to.

    Attributes:
        labels: [n] float32.
        dense: [n, D] float32.
        single: [n] int64 for each feature of one id per sample that is in no group, in the order of features.
        lists: each multi-hot feature that is in no group, in the order of features.
        groups: distinct lists of each group.
        sessions: [n] int64; None where they are not read.
    """

    labels: npt.NDArray[np.float32]
    dense: npt.NDArray[np.float32]
    single: tuple[npt.NDArray[np.int64], ...]
    lists: tuple[IdLists, ...]
    groups: SharedGroups
    sessions: npt.NDArray[np.int64] | None = None

    @property
    def num_bytes(self) -> int:
        """Of all."""
        arrays = (self.labels, self.dense, *self.single, *(() if self.sessions is None else (self.sessions,)))
        of_arrays: int = sum(array.nbytes for array in arrays)
        return of_arrays + sum(lists.num_bytes for lists in self.lists) + self.groups.num_bytes


def decoded(table: Any, choice: ColumnChoice) -> RowGroup:
    """Take the arrays out of a decoded row group.

    Args:
        table: ``pyarrow.Table`` of ``choice.columns()``.
        choice: what is read, and what is done to it.

    Returns:
        Samples; what needs no work lies in the memory that Arrow decoded it to.

    Raises:
        ValueError: lists and their weights have different lengths, or a row group begins with a null.
    """
    labels = one_chunk(table, LABEL_COLUMN).to_numpy()
    if choice.num_dense:
        dense = one_chunk(table, DENSE_COLUMN).flatten().to_numpy().reshape(len(labels), choice.num_dense)
    else:
        dense = np.zeros((len(labels), 0), np.float32)
    columns = _Columns(table, dense, choice)
    return RowGroup(
        labels=labels,
        dense=dense,
        single=tuple(columns.ids(feature.name) for feature in choice.plain if not feature.multi_hot),
        lists=tuple(columns.lists(feature.name) for feature in choice.plain if feature.multi_hot),
        groups=columns.groups(choice.groups),
        sessions=one_chunk(table, SESSION_COLUMN).to_numpy() if choice.sessions else None,
    )


class _Columns:
    """The columns of a decoded row group as features."""

    def __init__(self, table: Any, dense: npt.NDArray[np.float32], choice: ColumnChoice) -> None:
        self._table = table
        self._dense = dense
        self._transforms = choice.transforms
        self._transform_once = choice.transform_once
        self._features = {feature.name: feature for feature in choice.given}

    def ids(self, name: str) -> npt.NDArray[np.int64]:
        ids = self._stored(name).single_ids()
        return ids if self._transforms is None else self._transforms.ids(name, ids)

    def lists(self, name: str) -> IdLists:
        runs, transforms = self._stored(name), self._transforms
        if transforms is None:
            return runs.of_samples()
        if self._transform_once:
            return RunLists(transforms.lists(name, runs.lists), runs.begins).of_samples()
        return transforms.lists(name, runs.of_samples())

    def groups(self, groups: Sequence[Sequence[str]]) -> SharedGroups:
        inverse = np.empty((len(groups), len(self._dense)), np.int32)
        rows = []
        for number, group in enumerate(groups):
            of_group, inverse[number] = self._distinct(group)
            rows.append(of_group)
        return SharedGroups(tuple(rows), inverse)

    def _distinct(self, group: Sequence[str]) -> tuple[DistinctRows, npt.NDArray[np.int64]]:
        transforms = self._transforms
        features, run_of_sample = runs_of_group([self._stored(name) for name in group])
        if transforms is None or not any(map(transforms.changes, group)):
            rows, inverse = distinct_rows(features)
            return rows, inverse if run_of_sample is None else inverse[run_of_sample]

        def transform(lists: Sequence[IdLists]) -> list[IdLists]:
            return [transforms.lists(name, of_name) for name, of_name in zip(group, lists, strict=True)]

        transform_once = self._transform_once
        if run_of_sample is not None:
            if not transform_once:
                features, run_of_sample = [self._stored(name).of_samples() for name in group], None
            elif len(features[0].offsets) <= FEW_RUNS * len(run_of_sample):
                # Runs are about as few as distinct lists, which need not be found first then.
                transform_once = False
        rows, inverse = distinct_rows(features, transform, transform_once=transform_once)
        return rows, inverse if run_of_sample is None else inverse[run_of_sample]

    def _stored(self, name: str) -> RunLists:
        if self._transforms is not None and self._transforms.is_new(name):
            return RunLists(lists_of_single_ids(self._transforms.new_ids(name, self._dense)), None)
        try:
            weights = one_chunk(self._table, name + WEIGHTS_SUFFIX) if self._features[name].weighted else None
            return runs_of_column(one_chunk(self._table, name), weights)
        except ValueError as error:
            raise ValueError(f"column {name}: {error}") from error

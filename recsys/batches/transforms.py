"""What is done to the ids of a feature while they are read: cut, clipped, hashed, sorted.

The recipe section, its check against a prepared log, and the steps themselves.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from itertools import pairwise
from typing import Annotated

import numpy as np
import numpy.typing as npt
from pydantic import Field

from windrow.comm.errors import RecipeError
from windrow.comm.options import NonNegativeInt, PositiveInt, checked_dataclass
from windrow.recsys.batches.arrow_columns import Lists
from windrow.recsys.batches.jagged import Jagged
from windrow.recsys.batches.transforms_kernels import NO_LIMIT, transform_ids, transform_lists
from windrow.recsys.log.options import SMALLEST_HASHED_TABLE
from windrow.recsys.log.store import FeatureEntry
from windrow.recsys.log.vocabulary import table_key

__all__ = ["TransformOptions", "Transforms"]

_IDS = np.iinfo(np.int64)


@checked_dataclass
class TransformOptions:
    """The steps of one feature, done in the order of these fields, whatever their order in the recipe.

    Each depends on one sample's list alone, and on nothing random: lists that are equal before are equal after, so
    that a list which many samples share is transformed once.
    """

    drop: tuple[int, ...] = ()
    """Ids taken out of lists, with their weights."""
    clip: tuple[NonNegativeInt, NonNegativeInt] | None = None
    """Lowest and highest id: smaller ids become the first, larger ones the second."""
    hash_rows: Annotated[int, Field(ge=SMALLEST_HASHED_TABLE)] | None = None
    """Rows of a smaller table that ids are hashed to: id 0 (missing) stays 0, others become
    1 + hash(id) mod (hash_rows - 1)."""
    distinct: bool = False
    """Whether of equal ids in a list only the first stays, with its weight."""
    keep_first: PositiveInt | None = None
    """How many ids of a list stay, at most: the first ones."""
    keep_last: PositiveInt | None = None
    """How many ids of a list stay, at most: the last ones."""
    sort: bool = False
    """Whether the ids of a list are sorted; equal ones keep their order, and weights follow their ids."""
    reverse: bool = False
    """Whether the order of a list is turned round."""
    dense: str = ""
    """Makes a new feature of one id per sample: name of the dense column that it comes from, as the store holds it
    (after the log's dense_transform). Goes with `bucketise`, and with no other step."""
    bucketise: tuple[float, ...] = ()
    """Rising boundaries: the id is how many of them are at most the value, so there is one row more than boundaries.
    Not-a-number counts as larger than all."""

    def __post_init__(self) -> None:
        """Refuse contradictions.

        Raises:
            RecipeError: an option contradicts another.
        """
        if self.clip is not None and self.clip[0] > self.clip[1]:
            raise RecipeError(f"clip = {list(self.clip)}: expected the lowest id, then the highest")
        if self.keep_first is not None and self.keep_last is not None:
            raise RecipeError("keep_first and keep_last contradict each other: set one of them")
        if bool(self.dense) != bool(self.bucketise):
            raise RecipeError("dense and bucketise go together: name the column, and give boundaries")
        if any(not low < high for low, high in pairwise(self.bucketise)):
            raise RecipeError(f"bucketise = {list(self.bucketise)}: boundaries must rise")
        if self.dense and self.steps() - {"dense", "bucketise"}:
            raise RecipeError(
                f"{self.dense!r} is bucketised, which takes no other step: remove "
                f"{', '.join(sorted(self.steps() - {'dense', 'bucketise'}))}"
            )

    def steps(self) -> set[str]:
        """Names of the fields that ask for something."""
        return {field.name for field in fields(self) if getattr(self, field.name) not in (None, False, "", ())}

    def keeps_length(self) -> bool:
        """Whether a list is as long afterwards as before, whatever it holds: what a feature of one id needs."""
        return not self.steps() & {"drop", "distinct", "keep_first", "keep_last"}

    def table_rows(self, rows: int) -> int:
        """Rows that the feature's table of so many rows needs afterwards: one more than the largest id of all.

        Where a dense column is bucketised, there was no table before, and `rows` has no meaning.
        """
        if self.bucketise:
            return len(self.bucketise) + 1
        if self.hash_rows is not None:
            return self.hash_rows
        if self.clip is not None:
            low, high = self.clip
            return max(low, min(rows - 1, high)) + 1
        return rows


class Transforms:
    """What is done to the features of a prepared log while it is read, and which features then come out.

    Args:
        options: by feature; names that the store lacks are new features, made from dense columns.
        features: of the store.
        dense: names of the store's dense columns.

    Raises:
        RecipeError: an unknown feature or dense column, a step that a feature of one id per sample cannot take, or
            features that share a table and would need different numbers of rows of it, or hash to it differently.

    Attributes:
        features: what comes out: the store's features in their order, then new ones in the order of `options`;
            `rows` is what their tables need.
    """

    def __init__(
        self, options: Mapping[str, TransformOptions], features: Sequence[FeatureEntry], dense: Sequence[str]
    ) -> None:
        self._options = dict(options)
        self._table = {feature.name: feature.table for feature in features}
        for name, steps in options.items():
            _check(name, steps, {feature.name: feature for feature in features}, dense)
        self._dense_index = {name: list(dense).index(steps.dense) for name, steps in options.items() if steps.dense}
        changed = [
            replace(feature, rows=options[feature.name].table_rows(feature.rows))
            if feature.name in options
            else feature
            for feature in features
        ]
        made = FeatureEntry(name="", table="", rows=0, multi_hot=False, weighted=False, ids="rows", counts={})
        new = [replace(made, name=name, table=name, rows=options[name].table_rows(0)) for name in self._dense_index]
        self.features: tuple[FeatureEntry, ...] = (*changed, *new)
        _check_tables(self.features, options)

    def changes(self, feature: str) -> bool:
        """Whether anything is done to the ids that the store has of a feature."""
        return feature in self._table and feature in self._options and bool(self._options[feature].steps())

    def is_new(self, feature: str) -> bool:
        """Whether a feature is made from a dense column, and has no column of its own in the store."""
        return feature in self._dense_index

    def lists(self, feature: str, lists: Lists) -> Lists:
        """Transform a multi-hot feature, each list for itself.

        Args:
            feature: its name.
            lists: of n samples; not altered.

        Returns:
            n lists, offsets int64 from 0, in memory of their own; `lists` where nothing is done.

        Cost:
            One pass over the ids; where lists are only cut, over those that stay.
        """
        if not self.changes(feature):
            return lists
        options = self._options[feature]
        num_ids = int(lists.offsets[-1]) - int(lists.offsets[0])
        weighted = lists.weights is not None
        offsets, ids = np.empty(len(lists.offsets), np.int64), np.empty(num_ids, np.int64)
        weights = np.empty(num_ids if weighted else 0, np.float32)
        transform_lists(
            lists.offsets,
            lists.values,
            np.zeros(0, np.float32) if lists.weights is None else lists.weights,
            np.unique(np.array(options.drop, np.int64)),
            self._clip_and_hash(feature),
            (
                NO_LIMIT if options.keep_first is None else options.keep_first,
                NO_LIMIT if options.keep_last is None else options.keep_last,
            ),
            1 << (2 * int(lists.lengths.max(initial=1)) - 1).bit_length() if options.distinct else 0,
            (options.sort, options.reverse),
            offsets,
            ids,
            weights,
        )
        if offsets[-1] < num_ids:
            # A copy, so that memory of what was cut off is given back.
            ids, weights = ids[: offsets[-1]].copy(), weights[: offsets[-1]].copy()
        return Jagged(ids, offsets, weights if weighted else None)

    def ids(self, feature: str, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Transform a feature of one id per sample, [n] int64; not altered, and not copied where nothing is done."""
        if not self.changes(feature):
            return ids
        out = np.empty(len(ids), np.int64)
        transform_ids(ids, *self._clip_and_hash(feature), out)
        return out

    def new_ids(self, feature: str, dense: npt.NDArray[np.float32]) -> npt.NDArray[np.int64]:
        """[n] ids of a feature for which `is_new`, made from `dense` [n, D], all dense columns of the store.

        They are how many boundaries are at most each value, compared as float64.
        """
        boundaries = np.array(self._options[feature].bucketise)
        values = dense[:, self._dense_index[feature]].astype(np.float64)
        return np.searchsorted(boundaries, values, side="right").astype(np.int64)

    def _clip_and_hash(self, feature: str) -> tuple[int, int, int, np.uint64]:
        options = self._options[feature]
        low, high = options.clip or (int(_IDS.min), int(_IDS.max))
        hash_rows = options.hash_rows or 0
        return low, high, hash_rows, np.uint64(table_key(self._table[feature]) if hash_rows else 0)


def _check(name: str, steps: TransformOptions, features: Mapping[str, FeatureEntry], dense: Sequence[str]) -> None:
    if steps.dense:
        if steps.dense not in dense:
            raise RecipeError(
                f"transforms.{name}: dense = {steps.dense!r} is no dense column of the log, only "
                f"{', '.join(dense) or 'none'} are"
            )
        if name in features or any(feature.table == name for feature in features.values()):
            raise RecipeError(f"transforms.{name} makes a new feature, but the log has one or a table of that name")
        return
    if name not in features:
        raise RecipeError(
            f"transforms.{name}: the log has no such feature, only {', '.join(features)}; for a new one set dense"
        )
    if not features[name].multi_hot and not steps.keeps_length():
        raise RecipeError(
            f"transforms.{name}: {', '.join(sorted(steps.steps() - {'clip', 'hash_rows', 'sort', 'reverse'}))} "
            "is for lists of ids, and this feature has one per sample: clip and hash_rows alone are for both"
        )


def _check_tables(features: Sequence[FeatureEntry], options: Mapping[str, TransformOptions]) -> None:
    """Features of one table mean one thing by one id, and are looked up in as many rows."""
    first: dict[str, FeatureEntry] = {}
    for feature in features:
        other = first.setdefault(feature.table, feature)
        hashed, others = (
            options[entry.name].hash_rows if entry.name in options else None for entry in (feature, other)
        )
        if hashed != others or feature.rows != other.rows:
            raise RecipeError(
                f"features {other.name!r} and {feature.name!r} share table {feature.table!r}, but their transforms "
                f"leave {other.rows} and {feature.rows} rows: give both the same clip and hash_rows"
            )

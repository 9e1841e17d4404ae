"""The transforms of a prepared log's features: checked, and applied by feature."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from windrow.comm.errors import RecipeError
from windrow.recsys.id_lists import IdLists
from windrow.recsys.store_manifest import FeatureEntry
from windrow.recsys.transforms.apply import bucket_ids, transformed_ids, transformed_lists
from windrow.recsys.transforms.options import TransformOptions

__all__ = ["Transforms"]


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
        self,
        options: Mapping[str, TransformOptions],
        features: Sequence[FeatureEntry],
        dense: Sequence[str],
    ) -> None:
        self._options = dict(options)
        self._table = {feature.name: feature.table for feature in features}
        for name, steps in options.items():
            _check(name, steps, {feature.name: feature for feature in features}, dense)
        self._dense_index = {
            name: list(dense).index(steps.dense) for name, steps in options.items() if steps.dense
        }
        self.features: tuple[FeatureEntry, ...] = (
            *(
                replace(feature, rows=options[feature.name].table_rows(feature.rows))
                if feature.name in options
                else feature
                for feature in features
            ),
            *(
                FeatureEntry(
                    name=name,
                    table=name,
                    rows=options[name].table_rows(0),
                    multi_hot=False,
                    weighted=False,
                    ids="rows",
                    counts={},
                )
                for name in self._dense_index
            ),
        )
        _check_tables(self.features, options)

    def changes(self, feature: str) -> bool:
        """Whether anything is done to the ids that the store has of a feature."""
        return feature in self._table and feature in self._options and bool(self._options[feature].steps())

    def is_new(self, feature: str) -> bool:
        """Whether a feature is made from a dense column, and has no column of its own in the store."""
        return feature in self._dense_index

    def lists(self, feature: str, lists: IdLists) -> IdLists:
        """Transform a multi-hot feature; see `transformed_lists`. Lists that nothing is done to are not copied."""
        if not self.changes(feature):
            return lists
        return transformed_lists(lists, self._options[feature], self._table[feature])

    def ids(self, feature: str, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Transform a feature of one id per sample; see `transformed_ids`."""
        if not self.changes(feature):
            return ids
        return transformed_ids(ids, self._options[feature], self._table[feature])

    def new_ids(self, feature: str, dense: npt.NDArray[np.float32]) -> npt.NDArray[np.int64]:
        """Ids of a feature that is made from a dense column.

        Args:
            feature: for which `is_new`.
            dense: [n, D] all dense columns of the store.

        Returns:
            [n] int64.
        """
        return bucket_ids(dense[:, self._dense_index[feature]], self._options[feature].bucketise)


def _check(
    name: str, steps: TransformOptions, features: Mapping[str, FeatureEntry], dense: Sequence[str]
) -> None:
    if steps.dense:
        if steps.dense not in dense:
            raise RecipeError(
                f"transforms.{name}: dense = {steps.dense!r} is no dense column of the log, only "
                f"{', '.join(dense) or 'none'} are"
            )
        if name in features or any(feature.table == name for feature in features.values()):
            raise RecipeError(
                f"transforms.{name} makes a new feature, but the log has one or a table of that name"
            )
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

"""The graph of a prepared log: its vertices are rows of tables, and an edge joins two that occur in one sample.

    sample    user 7    items 3, 4        edges  user 7 - item 3,  user 7 - item 4

Vertices are numbered table after table, so that vectors of vertices, cut by tables, are rows of `tables.pretrained`.
"""

from collections.abc import Mapping, Sequence
from itertools import combinations, pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from windrow.comm.errors import RecipeError, nearest_name
from windrow.recsys.batches.arrow_columns import Lists, one_chunk, runs_of_column
from windrow.recsys.batches.jagged import Jagged
from windrow.recsys.log.store import LABEL_COLUMN, LogStore
from windrow.recsys.log.vocabulary import FIRST_VALUE_ROW, MISSING_ROW

__all__ = ["CoOccurrences", "co_occurrences"]

IntArray = npt.NDArray[np.int64]

FIRST_ROWS = {"vocabulary": FIRST_VALUE_ROW, "hash": MISSING_ROW + 1, "rows": 0}
"""Of rows that stand for values of the log, by the rule that made them."""


class CoOccurrences(NamedTuple):
    """Which rows of tables occur together.

    Attributes:
        pairs: int64 [2, n], two vertices each, every pair once, the lower number first.
        counts: int64 [n], how often they do: an id twice in a sample's list counts twice.
        vertices: for each table the [start, stop) of its rows among the vertices.
    """

    pairs: IntArray
    counts: IntArray
    vertices: Mapping[str, tuple[int, int]]

    @property
    def num_vertices(self) -> int:
        """Rows of all tables."""
        return max(stop for _, stop in self.vertices.values())


def co_occurrences(store: LogStore, features: Sequence[str] = (), *, positive: bool = True) -> CoOccurrences:
    """Count which ids of different features occur in one training sample.

    Args:
        store: of a prepared log.
        features: at least two; none given: all.
        positive: whether only samples count whose label, or any of their labels, is above 0.

    Returns:
        The same on every rank. Rows that stand for values that are missing or not known occur with nothing.

    Raises:
        RecipeError: there is no such feature, or one alone.

    Cost: one pass over the training split; memory for the pairs of a row group, and for those that differ.
    """
    from pyarrow import parquet

    known = {feature.name: feature for feature in store.features}
    for name in features:
        if name not in known:
            raise RecipeError(f"features: the log has no {name!r}. {nearest_name(name, list(known))}")
    chosen = [known[name] for name in features or known]
    if len(chosen) < 2:
        raise RecipeError(f"features = {[feature.name for feature in chosen]}: ids of two at least can occur together")
    rows = {feature.table: feature.rows for feature in chosen}
    stops = np.cumsum([0, *rows.values()]).tolist()
    vertices = dict(zip(rows, pairwise(stops), strict=True))
    first = [vertices[feature.table][0] + FIRST_ROWS[feature.ids] for feature in chosen]
    keys, counts = np.zeros(0, np.int64), np.zeros(0, np.int64)
    for path in store.split("train").files:
        file = parquet.ParquetFile(path)
        for group in range(file.num_row_groups):
            columns = file.read_row_group(group, columns=[LABEL_COLUMN, *(feature.name for feature in chosen)])
            lists: list[Lists] = []
            for feature in chosen:
                ids = runs_of_column(one_chunk(columns, feature.name)).of_samples()
                lists.append(Jagged(ids.values + vertices[feature.table][0], ids.offsets))
            if positive:
                labels = np.stack(columns[LABEL_COLUMN].to_numpy(zero_copy_only=False))
                samples = np.flatnonzero((labels.reshape(len(labels), -1) > 0).any(axis=1))
                lists = [of_feature.select(samples) for of_feature in lists]
            found = [
                _pairs(lists[a], lists[b], first[a], first[b], stops[-1]) for a, b in combinations(range(len(lists)), 2)
            ]
            ones = np.ones(sum(map(len, found)), np.int64)
            keys, places = np.unique(np.concatenate([keys, *found]), return_inverse=True)
            counts = np.bincount(places, np.concatenate([counts, ones])).astype(np.int64)
    return CoOccurrences(np.stack([keys // stops[-1], keys % stops[-1]]), counts, vertices)


def _pairs(one: Lists, other: Lists, first: int, other_first: int, size: int) -> IntArray:
    """Each id of a sample's list with each of its other list, as low * size + high; not those below the first ones."""
    partners = other.select(one.rows)
    left, right = one.values[partners.rows], partners.values
    kept = (left >= first) & (right >= other_first) & (left != right)
    left, right = left[kept], right[kept]
    keys: IntArray = np.minimum(left, right) * size + np.maximum(left, right)
    return keys

"""The steps of one feature, done to its ids."""

import numpy as np
import numpy.typing as npt

from windrow.recsys.hashing import table_key
from windrow.recsys.id_lists import IdLists
from windrow.recsys.transforms.options import TransformOptions
from windrow.recsys.transforms.transform_kernels import NO_LIMIT, transform_ids, transform_lists

__all__ = ["bucket_ids", "transformed_ids", "transformed_lists"]

_IDS = np.iinfo(np.int64)


def transformed_lists(lists: IdLists, options: TransformOptions, table: str) -> IdLists:
    """Do a feature's steps to its lists, each for itself.

    Args:
        lists: of n samples; not altered.
        options: the steps, done in the order of their fields.
        table: name of the table that the ids belong to: what they are hashed with.

    Returns:
        n lists, offsets int64 from 0, in memory of their own.

    Cost:
        One pass over the ids; where lists are only cut, over those that stay.
    """
    num_ids = int(lists.offsets[-1]) - int(lists.offsets[0])
    weighted = lists.weights is not None
    offsets, ids = np.empty(len(lists.offsets), np.int64), np.empty(num_ids, np.int64)
    weights = np.empty(num_ids if weighted else 0, np.float32)
    transform_lists(
        lists.offsets,
        lists.ids,
        np.zeros(0, np.float32) if lists.weights is None else lists.weights,
        np.unique(np.array(options.drop, np.int64)),
        _clip_and_hash(options, table),
        (
            NO_LIMIT if options.keep_first is None else options.keep_first,
            NO_LIMIT if options.keep_last is None else options.keep_last,
        ),
        (options.distinct, options.sort, options.reverse),
        offsets,
        ids,
        weights,
    )
    if offsets[-1] < num_ids:
        # A copy, so that memory of what was cut off is given back.
        ids, weights = ids[: offsets[-1]].copy(), weights[: offsets[-1]].copy()
    return IdLists(offsets, ids, weights if weighted else None)


def transformed_ids(
    ids: npt.NDArray[np.int64], options: TransformOptions, table: str
) -> npt.NDArray[np.int64]:
    """Do a feature's steps where it has one id per sample.

    Args:
        ids: [n]; not altered.
        options: steps that keep the length of lists (`TransformOptions.keeps_length`).
        table: name of the table that the ids belong to.

    Returns:
        [n] int64.
    """
    out = np.empty(len(ids), np.int64)
    transform_ids(ids, *_clip_and_hash(options, table), out)
    return out


def bucket_ids(values: npt.NDArray[np.float32], boundaries: tuple[float, ...]) -> npt.NDArray[np.int64]:
    """How many boundaries are at most each value.

    Args:
        values: [n] float32; not-a-number counts as larger than all.
        boundaries: rising; compared as float64.

    Returns:
        [n] int64, 0 .. len(boundaries).
    """
    return np.searchsorted(np.array(boundaries, np.float64), values.astype(np.float64), side="right").astype(
        np.int64
    )


def _clip_and_hash(options: TransformOptions, table: str) -> tuple[int, int, int, np.uint64]:
    low, high = options.clip or (int(_IDS.min), int(_IDS.max))
    hash_rows = options.hash_rows or 0
    return low, high, hash_rows, np.uint64(table_key(table) if hash_rows else 0)

"""A minibatch of histories and items, as `windrow.recsys.models.next_item` takes it.

B samples and M more items that they are told apart from make B + M rows of two features, which look into one table::

    row              history      item
    0 .. B - 1       [i, ...]     [what came next]
    B .. B + M - 1   []           [another item]

Deduplicated, each item is in the batch once, as a group, and histories are windows into packed ids: those of samples
of one session, next to one another, overlap (the partial variant of RecD's inverse keyed jagged tensor; Zhao et al.,
RecD: Deduplication for End-to-End Deep Learning Recommendation Model Training Infrastructure, MLSys 2023, arXiv
2211.05239). Row b then has the ids that sample b adds to the packed ones.
"""

import numpy as np
import numpy.typing as npt
import torch

from windrow.comm.errors import DataError
from windrow.recsys.batch import Batch
from windrow.recsys.deduplication.deduplicate import deduplicate
from windrow.recsys.deduplication.partial import PartialLists, pack_windows
from windrow.recsys.id_lists import IdLists

__all__ = ["HISTORY", "ITEM", "make_session_batch"]

HISTORY, ITEM = "history", "item"
"""The features."""

IntArray = npt.NDArray[np.int64]


def make_session_batch(
    histories: IdLists, items: IntArray, row_ids: IntArray, *, deduplicated: bool = False
) -> Batch:
    """Put histories and items into one minibatch.

    Args:
        histories: of B samples, without weights, offsets from 0; each has at least one item.
        items: [B + M] what came next after each history, then the other items; or [M], for histories of which
            nothing is known, or for no histories.
        row_ids: [B] numbers of the samples.
        deduplicated: hold what repeats once.

    Returns:
        labels are [B] ones, dense is [B, 0].

    Raises:
        DataError: a history is empty.
    """
    from windrow.recsys.torchrec_adapter import KeyedJaggedTensor

    num_samples, num_rows = len(row_ids), max(len(row_ids), len(items))
    lengths = np.zeros((2, num_rows), np.int64)
    lengths[0, :num_samples] = np.diff(histories.offsets)
    lengths[1, : len(items)] = 1
    if num_samples and lengths[0, :num_samples].min() == 0:
        row = int(lengths[0, :num_samples].argmin())
        raise DataError(f"the history of sample {row_ids[row]} is empty: leave such samples out")
    ids, windows = histories.ids, {}
    if deduplicated:
        packed = pack_windows(torch.from_numpy(histories.offsets), torch.from_numpy(histories.ids))
        windows[HISTORY] = packed
        ids = packed.values.numpy()
        lengths[0, :num_samples] = _added(packed)
    sparse = KeyedJaggedTensor(
        keys=[HISTORY, ITEM],
        values=torch.from_numpy(np.concatenate([ids, items])),
        lengths=torch.from_numpy(lengths.ravel()),
        stride=num_rows,
    )
    groups = (deduplicate(sparse, [ITEM]),) if deduplicated else ()
    if deduplicated:
        sparse = KeyedJaggedTensor(
            keys=[HISTORY],
            values=torch.from_numpy(ids),
            lengths=torch.from_numpy(lengths[0]),
            stride=num_rows,
        )
    return Batch(
        dense=torch.empty(num_samples, 0),
        sparse=sparse,
        labels=torch.ones(num_samples),
        row_ids=torch.from_numpy(row_ids),
        deduplicated=groups,
        windows=windows,
    )


def _added(packed: PartialLists) -> IntArray:
    """[B] packed ids up to the end of each window that lie behind the ends of all windows before."""
    ends = np.maximum.accumulate((packed.starts + packed.lengths).numpy())
    return np.diff(ends, prepend=0)

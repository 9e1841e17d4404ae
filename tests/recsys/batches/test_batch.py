import dataclasses

import torch

from windrow.recsys.batches.batch import Batch
from windrow.recsys.batches.deduplication.ikjt import InverseKeyedJaggedTensor, PartialLists
from windrow.recsys.torchrec_adapter import KeyedJaggedTensor


def batch(num_samples: int) -> Batch:
    sparse = KeyedJaggedTensor(
        keys=["item"], values=torch.arange(num_samples), lengths=torch.ones(num_samples, dtype=torch.int64)
    )
    return Batch(
        torch.zeros(num_samples, 3), sparse, torch.zeros(num_samples), torch.arange(num_samples) + 100
    )


def test_counts_its_samples():
    assert batch(4).num_samples == 4
    assert batch(0).num_samples == 0


def test_to_where_it_is_copies_nothing():
    mine = batch(2)
    assert mine.to(torch.device("cpu")) is mine


def test_to_another_device_moves_all_but_the_row_numbers():
    moved = batch(2).to(torch.device("meta"))
    assert {moved.dense.device.type, moved.labels.device.type, moved.sparse.values().device.type} == {"meta"}
    assert moved.row_ids.tolist() == [100, 101]


def with_a_group() -> Batch:
    """3 samples: an item each, and a history that the first and the last share."""
    sparse = KeyedJaggedTensor(keys=["item"], values=torch.tensor([4, 5, 6]), lengths=torch.ones(3).long())
    rows = KeyedJaggedTensor(
        keys=["history"],
        values=torch.tensor([1, 2, 3]),
        weights=torch.tensor([0.5, 0.25, 2.0]),
        lengths=torch.tensor([2, 1]),
    )
    group = InverseKeyedJaggedTensor(rows, torch.tensor([0, 1, 0]))
    return Batch(torch.zeros(3, 0), sparse, torch.zeros(3), torch.arange(3), (group,))


def test_expanded_gives_every_sample_its_lists():
    plain = batch(3)
    assert plain.expanded() is plain
    whole = with_a_group().expanded()
    assert whole.deduplicated == ()
    assert whole.sparse.keys() == ["item", "history"]
    assert whole.sparse.stride() == 3
    assert whole.sparse.values().tolist() == [4, 5, 6, 1, 2, 3, 1, 2]
    assert whole.sparse.lengths().tolist() == [1, 1, 1, 2, 1, 2]
    # Ids of a part without weights weigh 1.
    assert whole.sparse.weights().tolist() == [1, 1, 1, 0.5, 0.25, 2, 0.5, 0.25]


def test_groups_move_too():
    (group,) = with_a_group().to(torch.device("meta")).deduplicated
    assert {group.inverse.device.type, group.unique.values().device.type} == {"meta"}


def test_windows_stay_and_move():
    windows = {"seen": PartialLists(torch.arange(4), torch.tensor([0, 1, 1]), torch.tensor([2, 3, 2]))}
    whole = dataclasses.replace(with_a_group(), windows=windows)
    assert whole.expanded().windows == windows
    assert whole.to(torch.device("meta")).windows["seen"].values.device.type == "meta"

import torch

from windrow.recsys.batch import Batch
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

import torch

from windrow.recsys.torchrec_adapter import JaggedTensor, KeyedJaggedTensor, KeyedTensor


def test_containers_are_those_of_torchrec():
    assert {kind.__module__ for kind in (JaggedTensor, KeyedJaggedTensor, KeyedTensor)} == {
        "torchrec.sparse.jagged_tensor"
    }


def test_features_come_first_and_samples_second():
    sparse = KeyedJaggedTensor(
        keys=["item", "history"],
        values=torch.tensor([7, 2, 7, 4, 1, 9]),
        lengths=torch.tensor([1, 1, 1, 2, 0, 1]),
    )
    assert sparse.stride() == 3
    assert sparse["history"].values().tolist() == [4, 1, 9]
    assert sparse["history"].offsets().tolist() == [0, 2, 2, 3]

import dataclasses
import re

import pytest
import torch

from windrow.comm.errors import DataError
from windrow.recsys.batches.batch import Batch, check_jagged
from windrow.recsys.batches.deduplication.ikjt import InverseKeyedJaggedTensor
from windrow.recsys.batches.jagged import Windows
from windrow.recsys.torchrec_adapter import KeyedJaggedTensor


def batch(num_samples: int) -> Batch:
    sparse = KeyedJaggedTensor(
        keys=["item"], values=torch.arange(num_samples), lengths=torch.ones(num_samples, dtype=torch.int64)
    )
    return Batch(torch.zeros(num_samples, 3), sparse, torch.zeros(num_samples), torch.arange(num_samples) + 100)


def test_to_where_it_is_copies_nothing():
    mine = batch(2)
    assert mine.to(torch.device("cpu")) is mine


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


def test_to_another_device_moves_all_but_the_row_numbers():
    windows = {"seen": Windows(torch.arange(4), torch.tensor([0, 1, 1]), torch.tensor([2, 3, 2]))}
    whole = dataclasses.replace(with_a_group(), windows=windows)
    assert whole.expanded().windows == windows
    moved = whole.to(torch.device("meta"))
    (group,) = moved.deduplicated
    tensors = [moved.dense, moved.labels, moved.sparse.values(), group.inverse, group.unique.values()]
    assert {tensor.device.type for tensor in [*tensors, moved.windows["seen"].values]} == {"meta"}
    assert moved.row_ids.tolist() == [0, 1, 2]


ROWS = {"item": 10, "history": 5}


def jagged(values=(7, 2, 7, 4, 1, 3), *, keys=("item", "history"), lengths=None, offsets=None, **others):
    if lengths is None and offsets is None:
        lengths = (1, 1, 1, 2, 0, 1)
    return KeyedJaggedTensor(
        keys=list(keys),
        values=torch.tensor(values, dtype=torch.int64),
        lengths=None if lengths is None else torch.tensor(lengths, dtype=torch.int64),
        offsets=None if offsets is None else torch.tensor(offsets, dtype=torch.int64),
        **others,
    )


@pytest.mark.parametrize(
    "good",
    [
        jagged(),
        jagged(lengths=None, offsets=(0, 1, 2, 3, 5, 5, 6)),
        jagged(lengths=(1, 1, 1, 2, 0, 1), offsets=(0, 1, 2, 3, 5, 5, 6)),
        jagged(weights=torch.ones(6)),
        jagged((0,), keys=("history",), lengths=(1,)),
        jagged((), lengths=(0, 0, 0, 0)),
        jagged((1, 2), lengths=(0, 0, 1, 1)),
        jagged((), lengths=(), stride=0),
    ],
    ids=["lengths", "offsets", "both", "weights", "one feature", "no ids", "none of a feature", "no samples"],
)
def test_accepts_what_keeps_the_laws(good):
    check_jagged(good, ROWS)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (jagged(keys=("item", "shop")), "feature 'shop' looks into no table: known are 'item', 'history'"),
        (jagged(keys=("item", "item")), "feature 'item' comes twice"),
        (jagged(lengths=(1, 1, 1, 2, 1)), "5 lengths for 2 features of 2 samples: must be 4"),
        (jagged(offsets=(0, 1, 2, 3, 6), stride=3), "5 offsets for 2 features of 3 samples: must be 7"),
        (jagged(lengths=(3, 3), stride_per_key_per_rank=[[1], [1]]), "different numbers of samples"),
        (jagged(offsets=(1, 2, 3, 4, 6, 6, 7)), "offsets start at 1: must start at 0"),
        (jagged(offsets=(0, 1, 2, 3, 5, 4, 6)), "'history', sample 1: offset 4 comes after 5"),
        (jagged(offsets=(0, 1, 2, 3, 3, 4, 5)), "offsets end at 5, but there are 6 ids"),
        (
            jagged(lengths=(1, 1, 1, 1, 1, 1), offsets=(0, 1, 2, 3, 5, 5, 6)),
            "'history', sample 0: length 1, but its offsets differ by 2",
        ),
        (jagged(lengths=(1, 1, 1, 5, -3, 1)), "'history', sample 1: length -3"),
        (jagged(lengths=(1, 1, 1, 2, 0, 0)), "lengths sum to 5, but there are 6 ids"),
        (jagged(weights=torch.ones(5)), "weights of shape [5] for 6 ids"),
        (jagged(weights=torch.ones(6, dtype=torch.int64)), "weights are torch.int64"),
        (jagged((7, 2, 10, 4, 1, 3)), "'item', sample 2: id 10, but the table has rows 0 to 9"),
        (jagged((7, 2, 7, 4, -1, 3)), "'history', sample 0: id -1, but the table has rows 0 to 4"),
        (jagged((7, 2, 7, 4, 1, 5)), "'history', sample 2: id 5, but the table has rows 0 to 4"),
        (
            KeyedJaggedTensor(["item"], torch.ones(1), lengths=torch.ones(1, dtype=torch.int64)),
            "ids are a 1-dimensional tensor of torch.float32",
        ),
        (KeyedJaggedTensor(["item"], torch.ones(1, dtype=torch.int64)), "neither lengths nor offsets"),
    ],
)
def test_refuses_each_broken_law(bad, message):
    with pytest.raises(DataError, match=re.escape(message)):
        check_jagged(bad, ROWS)

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from windrow.recsys.batches.deduplication.distinct_lists import (
    DeviceColumn,
    distinct_on_device,
    hash_on_device,
)


def column(lists, unused=0):
    offsets = torch.tensor([0, *map(len, lists)]).cumsum(0) + unused
    values = [9] * unused + [one for ones in lists for one in ones]
    return DeviceColumn(offsets, torch.tensor(values, dtype=torch.int64))


def same_hash_for_all(columns):
    return torch.full_like(columns[0].starts, 3)


def hash_of_one_bit(columns):
    return hash_on_device(columns) & 1


LISTS = st.lists(st.lists(st.integers(0, 1), max_size=4), max_size=10)


@pytest.mark.parametrize("hashing", [hash_on_device, same_hash_for_all, hash_of_one_bit])
@given(first=LISTS, second=LISTS, unused=st.integers(0, 2))
def test_is_what_comparing_one_sample_after_the_other_gives(hashing, first, second, unused):
    samples = [(tuple(one), tuple(other)) for one, other in zip(first, second, strict=False)]
    columns = [column([one for one, _ in samples], unused), column([other for _, other in samples])]
    representatives, inverse = distinct_on_device(columns, hashing=hashing)
    kinds = list(dict.fromkeys(samples))
    assert representatives.tolist() == [samples.index(kind) for kind in kinds]
    assert inverse.tolist() == [kinds.index(sample) for sample in samples]


def test_hashes_of_lists_that_are_alike_differ():
    lists = [[], [0], [0, 0], [1], [1, 0], [0, 1], [-1], [1 << 62], [1 << 62, 1 << 62], [2, 3], [3, 2]]
    assert len(set(hash_on_device([column(lists)]).tolist())) == len(lists)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_gives_the_same_on_a_gpu():
    on_cpu = column([[1, 2], [2, 1], [1, 2], [], [2, 1], []])
    on_gpu = DeviceColumn(on_cpu.offsets.cuda(), on_cpu.values.cuda())
    for expected, found in zip(distinct_on_device([on_cpu]), distinct_on_device([on_gpu]), strict=True):
        assert found.cpu().tolist() == expected.tolist()

import torch
from hypothesis import given
from hypothesis import strategies as st

from windrow.recsys.models.self_attention import ListBuckets, bucket_limit


def test_limits_stand_close():
    assert [bucket_limit(length) for length in (0, 1, 2, 15, 16, 17, 18, 19, 33, 64, 65, 129)] == [
        *(0, 1, 2, 15, 16, 18, 18, 20, 36, 64, 72, 144)
    ]
    for length in range(1, 3000):
        limit = bucket_limit(length)
        assert length <= limit == bucket_limit(limit)
        assert limit - length <= length / 8


@given(lengths=st.lists(st.integers(0, 40), max_size=12))
def test_every_item_keeps_its_list(lengths):
    buckets = ListBuckets(torch.tensor(lengths, dtype=torch.int64))
    assert buckets.lengths.tolist() == sorted(lengths)
    assert buckets.order[buckets.place_of_list].tolist() == list(range(len(lengths)))
    assert [lengths[place] for place in buckets.order] == sorted(lengths)
    assert sum(bucket.num_lists for bucket in buckets.buckets) == len(lengths)
    names = [(number, item) for number in buckets.order.tolist() for item in range(lengths[number])]
    items = torch.tensor(names, dtype=torch.float64).view(-1, 2)
    sizes = [bucket.num_items for bucket in buckets.buckets]
    parts = items.split(sizes) if sizes else ()
    numbers = iter(buckets.order.tolist())
    for bucket, part in zip(buckets.buckets, parts, strict=True):
        matrix = bucket.padded(part).view(bucket.num_lists, bucket.longest, 2)
        for row in range(bucket.num_lists):
            number = next(numbers)
            length = lengths[number]
            assert matrix[row, :length].tolist() == [[number, item] for item in range(length)]
            if bucket.is_item is not None:
                assert bucket.is_item[row, 0, 0].tolist() == [True] * length + [False] * (
                    bucket.longest - length
                )
        assert torch.equal(bucket.cut(matrix.flatten(0, 1)), part)


def test_equal_lengths_are_not_padded():
    (bucket,) = ListBuckets(torch.tensor([30, 30, 30])).buckets
    items = torch.ones(90, 2)
    assert bucket.padded(items) is items
    assert bucket.is_item is None

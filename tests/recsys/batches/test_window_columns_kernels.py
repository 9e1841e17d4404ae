import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from windrow.recsys.batches.windows_kernels import gather_lists


@given(st.lists(st.lists(st.integers(0, 99), max_size=5), max_size=10), st.randoms(use_true_random=False))
def test_is_what_copying_one_list_at_a_time_gives(lists, random):
    order = list(range(len(lists)))
    random.shuffle(order)
    starts = np.cumsum([0, *map(len, lists)])[:-1].astype(np.int64)
    offsets = np.cumsum([0, *(len(lists[index]) for index in order)]).astype(np.int64)
    values = [number for numbers in lists for number in numbers]
    for dtype in (np.int64, np.float32):
        out = np.empty(len(values), dtype)
        gather_lists(starts, np.array(values, dtype), np.array(order, np.int64), offsets, out)
        assert out.tolist() == [number for index in order for number in lists[index]]

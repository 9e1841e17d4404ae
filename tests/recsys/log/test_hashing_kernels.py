"""windrow.recsys.log.vocabulary_kernels: the hash table against a dictionary; test_hashing.py tests the hashes."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from windrow.recsys.log.vocabulary_kernels import fill_slots, find_in_slots

# Few distinct low bits, so that many keys compete for a slot.
KEYS = st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 40), unique=True, max_size=30)


@given(KEYS, st.lists(st.integers(0, 60), max_size=30))
def test_every_key_is_found_where_it_was_put(keys: list[int], others: list[int]) -> None:
    slots = np.full(64, -1, np.int64)
    assert fill_slots(np.array(keys, np.uint64), slots) == -1
    wanted = keys + others
    found = np.empty(len(wanted), np.int64)
    find_in_slots(np.array(wanted, np.uint64), np.array(keys, np.uint64), slots, found)
    positions = {key: position for position, key in enumerate(keys)}
    assert found.tolist() == [positions.get(key, -1) for key in wanted]


def test_a_repeated_key_is_named() -> None:
    slots = np.full(8, -1, np.int64)
    assert fill_slots(np.array([4, 12, 4], np.uint64), slots) == 2

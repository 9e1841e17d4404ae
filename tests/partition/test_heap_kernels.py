import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from windrow.partition.refine_kernels import push_or_update, remove

SIZE = 12
OPERATIONS = st.lists(st.tuples(st.integers(0, SIZE - 1), st.none() | st.integers(-5, 5)), max_size=60)


@settings(deadline=None)
@given(OPERATIONS)
def test_behaves_like_a_dictionary_of_priorities(operations):
    heap, position = np.empty(SIZE, np.int32), np.full(SIZE, -1, np.int32)
    priority, length, expected = np.zeros(SIZE, np.int64), 0, {}
    for vertex, value in operations:
        if value is None:
            if vertex in expected:
                length = remove(heap, position, priority, length, vertex)
                del expected[vertex]
        else:
            length = push_or_update(heap, position, priority, length, vertex, value)
            expected[vertex] = value
        assert length == len(expected)
        assert sorted(heap[:length].tolist()) == sorted(expected)
        assert all(heap[position[v]] == v for v in expected)
        if expected:
            assert priority[heap[0]] == max(expected.values())

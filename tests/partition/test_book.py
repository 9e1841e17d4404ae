"""Who owns a vertex and what it is called."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.comm.errors import DataError
from windrow.partition.book import PartitionBook

ASSIGNMENTS = st.integers(1, 5).flatmap(
    lambda parts: st.tuples(st.just(parts), st.lists(st.integers(0, parts - 1), max_size=40))
)


@given(ASSIGNMENTS)
def test_round_trips_and_ranges(case):
    num_parts, assignment = case[0], np.array(case[1], np.int32)
    book = PartitionBook.from_assignment(assignment, num_parts)
    ids = np.arange(len(assignment))
    assert (book.to_original(book.to_new(ids)) == ids).all()
    assert (book.to_new(book.to_original(ids)) == ids).all()
    assert (book.restore(book.new_to_old) == ids).all()
    assert (book.owner(book.to_new(ids)) == assignment).all()
    assert (book.owner(book.old_to_new) == assignment).all()
    for part in range(num_parts):
        start, stop = book.part_range(part)
        assert book.part_size(part) == stop - start
        assert (book.new_to_old[start:stop] == np.flatnonzero(assignment == part)).all()


def test_the_picture_in_the_module():
    book = PartitionBook.from_assignment(np.array([1, 0, 1, 0, 0, 1]), 2)
    assert book.new_to_old.tolist() == [1, 3, 4, 0, 2, 5]
    assert book.offsets.tolist() == [0, 3, 6]
    assert book.old_to_new.tolist() == [3, 0, 4, 1, 2, 5]
    assert (book.num_parts, book.num_vertices) == (2, 6)
    rows = np.arange(24).reshape(6, 2, 2)
    assert (book.restore(rows[book.new_to_old]) == rows).all()


@given(ASSIGNMENTS, st.data())
def test_priority_falls_inside_parts_and_ties_keep_the_users_order(case, data):
    num_parts, assignment = case[0], np.array(case[1], np.int32)
    few = st.sampled_from([-1.5, 0.0, 0.25, 1.0])
    drawn = st.lists(few, min_size=len(assignment), max_size=len(assignment))
    priority = np.array(data.draw(drawn), np.float64)
    book = PartitionBook.from_assignment(assignment, num_parts, priority)
    expected = sorted(range(len(assignment)), key=lambda v: (assignment[v], -priority[v], v))
    assert book.new_to_old.tolist() == expected
    plain = PartitionBook.from_assignment(assignment, num_parts)
    assert (book.offsets == plain.offsets).all()
    assert (book.owner(book.old_to_new) == assignment).all()


def test_bad_input_is_refused():
    for assignment, priority, message in (
        ([0, 2], None, r"vertex 1 is assigned to part 2, expected \[0, 2\)"),
        ([0, 1], [0.0], "priority has 1 values, 0 of them nan, for 2 vertices"),
        ([0, 1], [0.0, np.nan], "priority has 2 values, 1 of them nan, for 2 vertices: give a number"),
    ):
        with pytest.raises(DataError, match=message):
            PartitionBook.from_assignment(np.array(assignment), 2, None if priority is None else np.array(priority))

from hypothesis import given
from hypothesis import strategies as st

from windrow.recsys.trainer import pipelined


class Recorder:
    """A lookup that writes down when its stages start."""

    def __init__(self, log, number):
        self._log = log
        self._number = number
        log.append(("counts", number))

    def start_ids(self):
        self._log.append(("ids", self._number))

    def start_lookup(self):
        self._log.append(("lookup", self._number))


def run(num_batches):
    log = []
    for batch, lookup in pipelined(range(num_batches), lambda number: Recorder(log, number)):
        assert lookup._number == batch
        log.append(("update", batch))
    return log


def test_order_of_four_batches():
    assert run(4) == [
        ("counts", 0),
        ("ids", 0),
        ("counts", 1),
        ("lookup", 0),
        ("ids", 1),
        ("counts", 2),
        ("update", 0),
        ("lookup", 1),
        ("ids", 2),
        ("counts", 3),
        ("update", 1),
        ("lookup", 2),
        ("ids", 3),
        ("update", 2),
        ("lookup", 3),
        ("update", 3),
    ]


@given(st.integers(0, 12))
def test_every_batch_goes_through_every_stage_and_sees_all_updates_before(num_batches):
    log = run(num_batches)
    for number in range(num_batches):
        places = [log.index((stage, number)) for stage in ("counts", "ids", "lookup", "update")]
        assert places == sorted(places)
        if number:
            assert log.index(("update", number - 1)) < log.index(("lookup", number))
    assert len(log) == 4 * num_batches


@given(st.integers(3, 12))
def test_two_more_batches_are_on_their_way(num_batches):
    log = run(num_batches)
    for number in range(num_batches - 2):
        before_update = log[: log.index(("update", number))]
        assert ("ids", number + 1) in before_update
        assert ("counts", number + 2) in before_update


def test_batches_are_taken_one_by_one():
    taken = []

    def source():
        for number in range(10):
            taken.append(number)
            yield number

    steps = pipelined(source(), lambda number: Recorder([], number))
    next(steps)
    assert taken == [0, 1, 2]

"""windrow.comm.clock: planted offsets and delays are found to within the bound, and real clocks agree."""

import hypothesis.strategies as st
from hypothesis import given

from windrow.comm.clock import ClockAlignment, ClockOffset, _best_offset, _PingPong, measure_clock_offset

NANOSECONDS = st.integers(0, 10**9)
OFFSETS = st.integers(-(10**15), 10**15)


def exchange(sent_ns, *, offset_ns, there_ns, stay_ns, back_ns):
    """What is seen of an exchange when rank 0's clock is ahead by `offset_ns`."""
    arrived_ns = sent_ns + there_ns + offset_ns
    left_ns = arrived_ns + stay_ns
    return _PingPong(sent_ns, arrived_ns, left_ns, left_ns - offset_ns + back_ns)


delays = st.tuples(NANOSECONDS, NANOSECONDS, NANOSECONDS, NANOSECONDS)


@given(offset_ns=OFFSETS, delays=st.lists(delays, min_size=1, max_size=20))
def test_the_error_is_within_half_the_quickest_exchange(offset_ns, delays):
    exchanges = [
        exchange(begin, offset_ns=offset_ns, there_ns=there, stay_ns=stay, back_ns=back)
        for begin, there, stay, back in delays
    ]
    found = _best_offset(exchanges)
    quickest = min(there + back for _, there, _, back in delays)
    assert found.uncertainty_ns == (quickest + 1) // 2
    assert abs(found.offset_ns - offset_ns) <= found.uncertainty_ns


@given(offset_ns=OFFSETS, way_ns=NANOSECONDS, stay_ns=NANOSECONDS)
def test_equal_ways_tell_the_offset_exactly(offset_ns, way_ns, stay_ns):
    one = exchange(5, offset_ns=offset_ns, there_ns=way_ns, stay_ns=stay_ns, back_ns=way_ns)
    assert one.on_the_way_ns == 2 * way_ns
    assert _best_offset([one]).offset_ns == offset_ns


alignments = st.builds(
    lambda at, elapsed, offset, drift: ClockAlignment(
        ClockOffset(at, offset, 3), ClockOffset(at + elapsed, offset + elapsed * drift // 10**6, 5)
    ),
    NANOSECONDS,
    st.integers(1, 10**13),
    OFFSETS,
    st.integers(-500, 500),
)


@given(alignment=alignments)
def test_both_measurements_lie_on_the_line(alignment):
    for measured in (alignment.first, alignment.last):
        assert alignment.to_rank_0_ns(measured.at_ns) == measured.at_ns + measured.offset_ns
    assert alignment.uncertainty_ns == 5


@given(alignment=alignments, moments=st.lists(st.integers(-(10**13), 10**14), min_size=2, max_size=2))
def test_time_never_goes_back(alignment, moments):
    earlier, later = sorted(moments)
    assert alignment.to_rank_0_ns(earlier) <= alignment.to_rank_0_ns(later)


@given(offset_ns=OFFSETS, own_ns=NANOSECONDS)
def test_one_measurement_is_a_constant_offset(offset_ns, own_ns):
    once = ClockOffset(at_ns=7, offset_ns=offset_ns, uncertainty_ns=2)
    assert ClockAlignment(once, once).to_rank_0_ns(own_ns) == own_ns + offset_ns


def test_ranks_of_one_machine_have_one_clock(spmd):
    found = spmd(measure_clock_offset)
    assert (found[0].offset_ns, found[0].uncertainty_ns) == (0, 0)
    for other in found[1:]:
        assert abs(other.offset_ns) <= other.uncertainty_ns
        assert other.uncertainty_ns > 0

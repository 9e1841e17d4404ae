"""windrow.launch.benchmark.compare: the order of runs, and what is kept of them."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.launch.benchmark.compare import interleave, rotation


@given(st.integers(1, 6), st.integers(0, 10))
def test_rotation_gives_everyone_every_round_and_every_place(num_names: int, rounds: int) -> None:
    names = [str(number) for number in range(num_names)]
    order = list(rotation(names, rounds))
    assert Counter(order) == Counter((turn, name) for turn in range(rounds) for name in names)
    assert [turn for turn, _ in order] == sorted(turn for turn, _ in order)
    firsts = Counter(order[turn * num_names][1] for turn in range(rounds))
    assert not firsts or max(firsts.values()) - min(firsts[name] for name in names) <= 1


def test_interleaving_rotates_and_keeps_every_timed_sample() -> None:
    order: list[str] = []
    variants = {name: (lambda name=name: order.append(name)) for name in "abc"}
    samples = interleave(variants, repeats=3, warm_up=1)
    assert "".join(order) == "abc" + "bca" + "cab" + "abc"
    assert {name: len(seconds) for name, seconds in samples.items()} == {"a": 3, "b": 3, "c": 3}
    assert all(second >= 0 for seconds in samples.values() for second in seconds)


def test_nothing_to_time_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one variant"):
        interleave({}, repeats=1)
    with pytest.raises(ValueError, match="one repeat"):
        interleave({"a": int}, repeats=0)

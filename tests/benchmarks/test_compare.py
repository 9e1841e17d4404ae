"""benchmarks.harness.compare: the order of runs, warm-up, memory; on ranks, the slowest counts for all."""

import math
import mmap
import time
from pathlib import Path

import pytest

from benchmarks.harness.compare import Variant, compare, mean_and_standard_error
from benchmarks.harness.result import Comparison
from windrow.comm.loopback import Loopback
from windrow.comm.world import World

PAUSE_S = 0.02
BLOCK_BYTES = 64 << 20


def test_every_timed_run_is_kept_and_warm_up_is_not() -> None:
    order: list[str] = []
    variants = {name: (lambda name=name: order.append(name)) for name in "abc"}
    found = compare(variants, baseline="b", repeats=3, warm_up=2)
    assert "".join(order) == "abc" + "bca" + "cab" + "abc" + "bca"
    assert found.baseline == "b"
    assert [len(measured.seconds) for measured in found.variants.values()] == [3, 3, 3]


def test_what_is_done_before_each_run_is_not_timed() -> None:
    done: list[str] = []

    def prepare() -> None:
        time.sleep(PAUSE_S)
        done.append("before")

    variant = Variant(run=lambda: done.append("run"), before=prepare)
    found = compare({"a": variant}, baseline="a", repeats=2)
    assert done == ["before", "run"] * 3
    assert max(found.variants["a"].seconds) < PAUSE_S


def test_amounts_are_those_of_the_variant() -> None:
    found = compare({"a": Variant(run=int, bytes=5, rows=2), "b": int}, baseline="a", repeats=1)
    assert (found.variants["a"].bytes, found.variants["a"].rows) == (5, 2)
    assert (found.variants["b"].bytes, found.variants["b"].rows) == (None, None)


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux's /proc/self/clear_refs")
def test_peak_memory_tells_variants_apart() -> None:
    def hold() -> None:
        # Not by the allocator, which another test may have told to keep what is freed.
        with mmap.mmap(-1, BLOCK_BYTES) as block:
            for start in range(0, BLOCK_BYTES, mmap.PAGESIZE):
                block[start] = 1

    found = compare({"small": int, "large": hold}, baseline="small", repeats=2)
    small, large = (found.variants[name].peak_memory_bytes for name in ("small", "large"))
    assert small is not None
    assert large is not None
    assert large > small + BLOCK_BYTES // 2


def test_nothing_to_compare_is_refused() -> None:
    with pytest.raises(ValueError, match="baseline among a, got 1 and 'b'"):
        compare({"a": int}, baseline="b", repeats=1)
    with pytest.raises(ValueError, match="got 0 and 'a'"):
        compare({"a": int}, baseline="a", repeats=0)


def test_ranks_agree_on_the_samples() -> None:
    def body(world: World) -> Comparison:
        run = Variant(run=lambda: world.barrier(stage="run"), rows=3)
        return compare({"a": run, "b": run}, baseline="a", repeats=2, world=world)

    first, *others = Loopback.run(3, body)
    assert all(other == first for other in others)
    assert [len(measured.seconds) for measured in first.variants.values()] == [2, 2]


def test_the_slowest_rank_counts_and_all_start_together() -> None:
    def body(world: World) -> Comparison:
        def pause() -> None:
            time.sleep(PAUSE_S * world.rank)

        return compare({"pause": pause}, baseline="pause", repeats=3, world=world)

    for found in Loopback.run(3, body):
        assert min(found.variants["pause"].seconds) >= 2 * PAUSE_S


def test_the_standard_error_is_that_of_the_mean() -> None:
    assert mean_and_standard_error([1.0, 2.0, 4.0, 5.0]) == pytest.approx((3.0, math.sqrt(10 / 3 / 4)))

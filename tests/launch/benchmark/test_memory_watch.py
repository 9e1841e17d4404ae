"""windrow.launch.benchmark.memory: blocks that come and go are seen, and shared pages are shared out."""

import mmap
import multiprocessing
import time
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from windrow.launch.benchmark.memory import ROLLUP, MemoryWatch, proportional_memory_bytes

BLOCK_BYTES = 64 << 20
needs_rollup = pytest.mark.skipif(not ROLLUP.exists(), reason="needs Linux's /proc/self/smaps_rollup")


def fill(block: mmap.mmap) -> None:
    for start in range(0, BLOCK_BYTES, mmap.PAGESIZE):
        block[start] = 1


@needs_rollup
def test_a_block_that_came_and_went_is_in_the_peak_and_not_in_the_next() -> None:
    before = proportional_memory_bytes()
    assert before is not None
    with MemoryWatch() as watch:
        with mmap.mmap(-1, BLOCK_BYTES) as block:
            fill(block)
            time.sleep(1.0)  # four looks
        peak, later = watch.take_peak_bytes(), watch.take_peak_bytes()
    assert peak > before + BLOCK_BYTES * 3 // 4
    assert later < peak - BLOCK_BYTES // 2


def hold(block: mmap.mmap, pipe: Connection) -> None:
    block[:: mmap.PAGESIZE]
    pipe.send("holding")
    pipe.recv()


@needs_rollup
def test_pages_of_two_processes_count_half_in_each() -> None:
    with mmap.mmap(-1, BLOCK_BYTES) as block:
        fill(block)
        alone = proportional_memory_bytes()
        here, there = multiprocessing.Pipe()
        context = multiprocessing.get_context("fork")
        process = context.Process(target=hold, args=(block, there))
        process.start()
        try:
            assert here.poll(30)
            shared = proportional_memory_bytes()
        finally:
            here.send("end")
            process.join(30)
    assert alone is not None
    assert shared is not None
    assert shared < alone - BLOCK_BYTES // 3


def test_the_kernels_file_is_read_in_kib(tmp_path: Path) -> None:
    rollup = tmp_path / "smaps_rollup"
    rollup.write_text("5581 [rollup]\nRss:     884 kB\nPss:     385 kB\nPss_Anon: 12 kB\n")
    assert proportional_memory_bytes(rollup) == 385 * 1024
    rollup.write_text("nothing\n")
    assert proportional_memory_bytes(rollup) is None
    assert proportional_memory_bytes(tmp_path / "absent") is None

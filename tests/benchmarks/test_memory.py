"""benchmarks.harness.memory: the peak rises with what is held, and begins anew; shared pages are shared out."""

import mmap
import multiprocessing
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from benchmarks.harness.memory import MemoryWatch, peak_memory_bytes, reset_peak_memory

BLOCK_BYTES = 64 << 20


def test_status_of_the_kernel_is_read_in_kib(tmp_path: Path) -> None:
    status = tmp_path / "status"
    status.write_text("Name:\tpython\nVmPeak:\t  900 kB\nVmHWM:\t     123 kB\nVmRSS:\t 100 kB\n")
    assert peak_memory_bytes(status) == 123 * 1024
    status.write_text("Name:\tpython\n")
    assert peak_memory_bytes(status) is None


def test_a_system_without_the_files_is_no_error(tmp_path: Path) -> None:
    assert peak_memory_bytes(tmp_path / "absent") is None
    assert not reset_peak_memory(tmp_path / "no folder" / "absent")
    assert sys.platform != "linux" or peak_memory_bytes() is not None


needs_rollup = pytest.mark.skipif(
    not Path("/proc/self/smaps_rollup").exists(), reason="needs Linux's /proc/self/smaps_rollup"
)


def fill(block: mmap.mmap) -> None:
    for start in range(0, BLOCK_BYTES, mmap.PAGESIZE):
        block[start] = 1


@needs_rollup
def test_a_block_that_came_and_went_is_in_the_peak_and_not_in_the_next() -> None:
    with MemoryWatch() as watch:
        before = watch.take_peak_bytes()
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
    with mmap.mmap(-1, BLOCK_BYTES) as block, MemoryWatch() as watch:
        fill(block)
        alone = watch.take_peak_bytes()
        here, there = multiprocessing.Pipe()
        context = multiprocessing.get_context("fork")
        process = context.Process(target=hold, args=(block, there))
        process.start()
        try:
            assert here.poll(30)
            watch.take_peak_bytes()
            shared = watch.take_peak_bytes()
        finally:
            here.send("end")
            process.join(30)
    assert shared < alone - BLOCK_BYTES // 3

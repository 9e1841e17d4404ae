"""windrow.launch.benchmark.memory: the peak rises with what is held, and begins anew."""

import mmap
import sys
from pathlib import Path

import pytest

from windrow.launch.benchmark.memory import peak_memory_bytes, reset_peak_memory

BLOCK_BYTES = 64 << 20


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux's /proc/self/clear_refs")
def test_peak_rises_with_a_block_and_begins_anew_after_it() -> None:
    assert reset_peak_memory()
    before = peak_memory_bytes()
    # Not by the allocator, which another test may have told to keep what is freed.
    with mmap.mmap(-1, BLOCK_BYTES) as block:
        for start in range(0, BLOCK_BYTES, mmap.PAGESIZE):
            block[start] = 1
        held = peak_memory_bytes()
    after_release = peak_memory_bytes()
    assert reset_peak_memory()
    anew = peak_memory_bytes()
    assert before is not None
    assert held is not None
    assert after_release is not None
    assert anew is not None
    # The kernel counts pages of each thread in batches, so these are not exact.
    assert min(held, after_release) > before + BLOCK_BYTES // 2
    assert anew < held - BLOCK_BYTES // 2


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

"""windrow.comm.process: threads of a rank, what its process keeps in memory."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from windrow.comm import process
from windrow.comm.process import core_share, threads_of_rank


def test_threads_of_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert threads_of_rank(0, 4) == 4
    for given, threads in (("5", 5), ("6,2", 6), ("", 4), ("many", 4), ("0", 4)):
        monkeypatch.setenv("OMP_NUM_THREADS", given)
        assert threads_of_rank(0, 4) == threads
        assert threads_of_rank(7, 4) == 7


def test_ranks_share_cores_that_both_may_run_on() -> None:
    machine = range(8)
    assert [core_share(machine, [machine] * ranks) for ranks in (1, 3, 9)] == [8, 2, 1]
    bound = [range(4), range(4, 8)]
    assert [core_share(own, bound) for own in bound] == [4, 4]
    assert [core_share(own, [range(6), range(4, 8)]) for own in (range(6), range(4, 8))] == [5, 3]


SCRIPT = """
import resource, sys
import torch
from windrow.comm.process import keep_freed_memory
if sys.argv[1] == "keep":
    assert keep_freed_memory()
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def take(times):
    for _ in range(times):
        torch.ones(9 << 20)
# Aligned memory comes out of a larger free piece, and it takes a few of them, side by side, to make one.
take(20)
before = faults()
take(6)
print(faults() - before)
"""


def printed(script: str, argument: str) -> int:
    """The number that a process of its own prints."""
    # Another test may have trained in this process, which sets them.
    settings = ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY")
    environment = {name: value for name, value in os.environ.items() if name not in settings}
    command = [sys.executable, "-P", "-c", script, argument]
    return int(subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout)


@pytest.mark.skipif(process.platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_large_memory_is_taken_again_without_page_faults() -> None:
    assert printed(SCRIPT, "keep") < printed(SCRIPT, "leave") / 2


HUGE = """
import sys
from windrow.comm.process import keep_freed_memory
import torch
if sys.argv[1] == "keep":
    keep_freed_memory()
rows = torch.zeros(64 << 20, dtype=torch.uint8)
with open("/proc/self/smaps") as file:
    print(sum(int(line.split()[1]) for line in file if line.startswith("AnonHugePages")))
"""
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@pytest.mark.skipif(
    not HUGE_PAGES.is_file() or "[madvise]" not in HUGE_PAGES.read_text(),
    reason="the system has no huge pages for those that ask",
)
@pytest.mark.skipif(process.platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_large_memory_is_in_huge_pages() -> None:
    assert printed(HUGE, "keep") > printed(HUGE, "leave") + (32 << 10)


def test_says_so_where_the_library_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process.platform, "libc_ver", lambda: ("", ""))
    assert not process.keep_freed_memory()


SHAPES = """
import ctypes, sys
import torch
from windrow.comm.process import keep_freed_memory
from windrow.training import dense
from windrow.training.dense import linear
dense.onednn_is_faster = lambda: True
class Counts(ctypes.Structure):
    names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in names.split()]
library = ctypes.CDLL(None)
library.mallinfo2.restype = Counts
if sys.argv[1] == "all":
    import os
    os.environ["LRU_CACHE_CAPACITY"] = os.environ["ONEDNN_PRIMITIVE_CACHE_CAPACITY"] = "1024"
keep_freed_memory()
weight = torch.randn(64, 64, requires_grad=True)
def step(rows):
    linear(torch.randn(rows, 64, requires_grad=True), weight, None).sum().backward()
step(4000)
before = library.mallinfo2().uordblks
for number in range(300):
    step(4001 + number)
print(library.mallinfo2().uordblks - before)
"""


@pytest.mark.skipif(process.platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_little_is_kept_of_shapes_that_do_not_come_again() -> None:
    kept = printed(SHAPES, "all")
    if kept < 1 << 20:
        pytest.skip("multiplications on this processor keep nothing of their shapes")
    assert printed(SHAPES, "64") < kept / 4


def test_what_the_user_has_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {"LRU_CACHE_CAPACITY": "77"}
    monkeypatch.setattr(process.os, "environ", environment)
    monkeypatch.setattr(process.platform, "libc_ver", lambda: ("", ""))
    process.keep_freed_memory()
    assert environment == {"LRU_CACHE_CAPACITY": "77", "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64"}

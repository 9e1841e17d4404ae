"""Freed memory stays with the process: measured in one of its own, by page faults."""

import subprocess
import sys

import pytest

from windrow.launch import memory

SCRIPT = """
import resource, sys
import torch
from windrow.launch.memory import keep_freed_memory
if sys.argv[1] == "keep":
    assert keep_freed_memory()
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
torch.ones(9 << 20)
before = faults()
for _ in range(40):
    torch.ones(9 << 20)
print(faults() - before)
"""


def page_faults(mode: str) -> int:
    command = [sys.executable, "-P", "-c", SCRIPT, mode]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


@pytest.mark.skipif(memory.platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_large_memory_is_taken_again_without_page_faults() -> None:
    assert page_faults("keep") < page_faults("leave") / 2


def test_says_so_where_the_library_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory.platform, "libc_ver", lambda: ("", ""))
    assert not memory.keep_freed_memory()

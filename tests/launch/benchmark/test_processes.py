"""windrow.launch.benchmark.workers: children and grandchildren, zombies, and what has ended."""

import os
import subprocess
import sys

import pytest

from windrow.launch.benchmark.workers import family, is_alive

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's /proc")

GRANDCHILD = "sleep 60 & echo $!; wait"


def test_children_and_grandchildren_until_they_end():
    with subprocess.Popen(["sh", "-c", GRANDCHILD], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        grandchild = int(child.stdout.readline())
        assert family(child.pid) == {child.pid, grandchild}
        assert family(child.pid) < family(os.getpid())
        assert is_alive(child.pid)
        assert is_alive(grandchild)
        os.kill(grandchild, 9)
        child.kill()
    assert family(child.pid) == set()
    assert not is_alive(child.pid)


def test_a_zombie_is_not_alive():
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    assert not is_alive(child)
    assert family(child) == set()
    os.waitpid(child, 0)

"""A thread that drives what is in flight, and rests when nothing is."""

import threading
import time

from windrow.comm.mpi_progress import BackgroundProgress

PATIENCE_S = 60.0


def wait_until(condition):
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(1e-3)


def test_it_drives_until_nothing_is_left_and_then_rests():
    calls = []
    left = 3
    rested = threading.Event()

    def drive():
        calls.append(threading.current_thread().name)
        if len(calls) >= left:
            rested.set()
            return False
        return True

    with BackgroundProgress(drive, interval_s=1e-4) as background:
        time.sleep(0.02)
        assert calls == [], "nothing was posted yet"
        background.notify()
        assert rested.wait(PATIENCE_S)
        time.sleep(0.02)
        assert calls == ["progress"] * left


def test_a_notice_while_it_drives_is_not_lost():
    calls = []
    driving, go_on = threading.Event(), threading.Event()

    def drive():
        calls.append(1)
        driving.set()
        go_on.wait(PATIENCE_S)
        return False

    with BackgroundProgress(drive, interval_s=1e-4) as background:
        background.notify()
        assert driving.wait(PATIENCE_S)
        background.notify()
        go_on.set()
        wait_until(lambda: len(calls) == 2)


def test_leaving_ends_the_thread_although_something_is_in_flight():
    threads = set(threading.enumerate())
    with BackgroundProgress(lambda: True, interval_s=1e-4) as background:
        background.notify()
    assert set(threading.enumerate()) == threads

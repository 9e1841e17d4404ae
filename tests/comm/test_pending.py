"""The waiting loop, with requests made for the test."""

import time

import pytest

from windrow.comm.errors import DeadlineError
from windrow.comm.transfer import Pending, Request


class Countdown(Request):
    """Complete after a number of tests."""

    def __init__(self, tests: int) -> None:
        self.left = tests

    def test(self) -> bool:
        self.left -= 1
        return self.left < 0

    def late_peers(self) -> list[int]:
        return [3, 5]


def pending(tests: int, deadline_s: float = 10) -> Pending[list[int]]:
    return Pending(Countdown(tests), lambda: [1, 2], description="rank 0 of 8, test", deadline_s=deadline_s)


def test_wait_polls_until_done_and_gives_the_same_result_again():
    handle = pending(300)
    result = handle.wait()
    assert result == [1, 2]
    assert handle.wait() is result
    assert handle.test()


class OnlyBlocking(Countdown):
    """Complete after a number of blocks: polling sees nothing."""

    polls = False

    def test(self) -> bool:
        self.tests = getattr(self, "tests", 0) + 1
        return self.left == 0

    def block(self, seconds: float) -> None:
        self.left -= 1


def test_a_request_that_only_blocking_completes_is_not_polled_for():
    request = OnlyBlocking(3)
    Pending(request, lambda: "done", description="test", deadline_s=10).wait()
    assert request.tests == 4


def test_test_never_blocks():
    handle = pending(2)
    assert [handle.test() for _ in range(4)] == [False, False, True, True]


def test_the_deadline_names_the_peers():
    with pytest.raises(DeadlineError, match=r"rank 0 of 8, test: still waiting for rank\(s\) 3, 5 after"):
        pending(10**9, deadline_s=0.05).wait()


def test_then_transforms_the_result():
    assert pending(3).then(sum).wait() == 3
    assert pending(3).then(sum).then(str).wait() == "3"


def test_each_wait_tells_how_long_it_took():
    waited: list[float] = []
    handle = Pending(Slow(), lambda: None, description="", deadline_s=10, on_waited=waited.append)
    handle.then(lambda _: None).wait()
    assert len(waited) == 1
    assert waited[0] >= Slow.SECONDS
    handle.test()
    assert len(waited) == 1


class Slow(Countdown):
    """Complete some time after it was first asked."""

    SECONDS = 0.02

    def __init__(self) -> None:
        super().__init__(0)
        self.asked: float | None = None

    def test(self) -> bool:
        now = time.monotonic()
        self.asked = self.asked or now
        return now - self.asked >= self.SECONDS

"""The waiting loop, with requests made for the test; copies between devices, of which on the CPU there must be none."""

import time

import pytest
import torch

from windrow.comm import transfer
from windrow.comm.errors import DeadlineError
from windrow.comm.transfer import Pending, Request, as_bytes, from_transport, to_transport


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


CPU = torch.device("cpu")


def test_a_tensor_is_copied_only_where_it_is_elsewhere():
    tensor, wanted = torch.arange(4), torch.zeros(4, dtype=torch.int64)
    assert to_transport(tensor, CPU) is tensor
    from_transport(tensor, tensor)
    from_transport(tensor, wanted)
    assert tensor.tolist() == wanted.tolist() == [0, 1, 2, 3]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_tensors_go_through_page_locked_memory():
    tensor = torch.arange(4, device="cuda")
    transport = to_transport(tensor, CPU)
    assert transport.is_pinned()
    assert transport.tolist() == [0, 1, 2, 3]
    wanted = torch.zeros_like(tensor)
    from_transport(transport, wanted)
    assert torch.equal(wanted, tensor)


@pytest.mark.parametrize(
    "tensor",
    [torch.arange(6).reshape(2, 3), torch.ones(1).expand(1), torch.empty(0, 4), torch.tensor(3.0), torch.empty(5)[:0]],
    ids=["matrix", "expanded", "no rows", "scalar", "empty slice"],
)
def test_bytes_are_the_tensors_own_memory(tensor):
    as_uint8 = as_bytes(tensor)
    assert as_uint8.shape == (tensor.nbytes,)
    assert as_uint8.numpy().tobytes() == tensor.numpy().tobytes()
    assert tensor.numel() == 0 or as_uint8.data_ptr() == tensor.data_ptr()


@pytest.mark.parametrize("crowded", [True, False])
def test_a_core_that_others_want_is_left_to_them(monkeypatch: pytest.MonkeyPatch, crowded: bool) -> None:
    naps: list[float] = []
    now = [0.0]

    def yield_core() -> None:
        now[0] += transfer.LONG_YIELD_S * (2 if crowded else 0.01)

    monkeypatch.setattr(transfer.os, "sched_yield", yield_core)
    monkeypatch.setattr(transfer.time, "sleep", naps.append)
    monkeypatch.setattr(transfer.time, "monotonic", lambda: now[0])
    pending(10).wait()
    assert naps == ([transfer.NAP_S] * 9 if crowded else [])

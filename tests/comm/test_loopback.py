"""The world of threads; what it shares with the others is in test_world."""

import threading
import time

import pytest
import torch

from windrow.comm.errors import DeadlineError, PeerFailedError
from windrow.comm.loopback import Loopback


def test_the_failing_ranks_own_error_is_raised_the_others_name_it_and_no_thread_is_left():
    seen = []

    def body(world):
        if world.rank == 2:
            raise KeyError("the cause")
        try:
            world.barrier(stage="wait for rank 2")
        except PeerFailedError as error:
            seen.append(str(error))
            raise

    before = threading.active_count()
    with pytest.raises(KeyError, match="the cause"):
        Loopback.run(4, body)
    assert threading.active_count() == before
    assert "rank 2 failed: KeyError('the cause')" in seen


def test_a_rank_that_never_comes_is_named_at_the_deadline():
    def body(world):
        if world.rank == 0:
            world.barrier(stage="meeting")
        time.sleep(1)

    with pytest.raises(DeadlineError, match=r"stage 'meeting': still waiting for rank\(s\) 1 after"):
        Loopback.run(2, body, deadline_s=0.2)


def test_a_rank_that_has_returned_is_not_waited_for():
    def body(world):
        if world.rank == 0:
            world.barrier(stage="meeting")

    with pytest.raises(PeerFailedError, match="rank 1 has finished and will not send"):
        Loopback.run(2, body, deadline_s=60)


def test_a_sent_buffer_may_change_once_the_operation_has_started():
    def body(world):
        send = torch.full((2, 1), float(world.rank))
        pending = world.start_all_to_all(send, [1, 1], [1, 1], stage="test")
        send.fill_(-1)
        return pending.wait().flatten().tolist()

    results = Loopback.run(2, body)
    assert [results[0][1], results[1][0]] == [1.0, 0.0]


def test_abort_ends_this_rank():
    with pytest.raises(SystemExit):
        Loopback.single().abort(3)

"""A thread that drives what is in flight; messages that give way, over links that are simulated and over MPI."""

import threading
import time
from collections import deque

import pytest
import torch

from windrow.comm.mpi_world import FEWEST, LONGEST_S, BackgroundProgress, PacedSends

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


def test_it_keeps_still_while_others_make_progress():
    calls = []

    def drive():
        calls.append(1)
        return True

    with BackgroundProgress(drive, interval_s=0.3) as background:
        background.notify()
        until = time.monotonic() + 0.8
        while time.monotonic() < until:
            background.tested()
            time.sleep(1e-3)
        assert calls == []
        wait_until(lambda: calls)


def test_leaving_ends_the_thread_although_something_is_in_flight():
    threads = set(threading.enumerate())
    with BackgroundProgress(lambda: True, interval_s=1e-4) as background:
        background.notify()
    assert set(threading.enumerate()) == threads


class Link:
    """Delivers pieces one after another, each in the same time; several peers share its clock."""

    def __init__(self, seconds_per_piece):
        self.seconds_per_piece = seconds_per_piece
        self.now = 0.0
        self.free = 0.0
        self.posted = []
        self.most_under_way = 0
        self.pieces = deque()

    def post(self, buffer, peer):
        self.posted.append((peer, buffer))
        self.free = max(self.free, self.now) + self.seconds_per_piece
        piece = Piece(self, self.free)
        self.pieces.append(piece)
        self.most_under_way = max(self.most_under_way, sum(not p.Test() for p in self.pieces))
        return piece


class Piece:
    def __init__(self, link, arrives):
        self.link, self.arrives = link, arrives

    def Test(self):  # noqa: N802 - MPI's name
        return self.link.now >= self.arrives


def send_all(link, sends, message, *, look_s=1e-3):
    while message.pieces_left:
        link.now += look_s
        sends.drive()
        assert link.now < 1000, "a message was never sent"


@pytest.mark.parametrize("seconds_per_piece", [1e-5, 1e-3, 0.2])
def test_pieces_leave_in_order_and_all_of_them(seconds_per_piece):
    link = Link(seconds_per_piece)
    sends = PacedSends(link.post, clock=lambda: link.now)
    first = sends.add([(1, "a"), (2, "b"), (1, "c"), (1, "d"), (1, "e")])
    second = sends.add([(1, "f"), (3, "g")])
    assert first.pieces_left == {1: 4, 2: 1}
    send_all(link, sends, second)
    send_all(link, sends, first)
    for peer, wanted in ((1, "acdef"), (2, "b"), (3, "g")):
        assert "".join(buffer for target, buffer in link.posted if target == peer) == wanted


def test_a_slow_link_holds_few_pieces():
    link = Link(LONGEST_S)
    sends = PacedSends(link.post, clock=lambda: link.now)
    send_all(link, sends, sends.add([(1, piece) for piece in range(50)]))
    assert link.most_under_way == FEWEST


def test_a_fast_link_does_not_fall_idle_between_two_looks():
    look_s, piece_s = 1e-3, 1e-4
    link = Link(piece_s)
    sends = PacedSends(link.post, clock=lambda: link.now)
    send_all(link, sends, sends.add([(1, piece) for piece in range(2000)]), look_s=look_s)
    assert link.most_under_way > look_s / piece_s
    assert link.now < 1.1 * 2000 * piece_s
    # Nor are there more than needed.
    assert link.most_under_way * piece_s < 2 * LONGEST_S


def test_a_link_that_becomes_slow_holds_fewer():
    link = Link(1e-4)
    sends = PacedSends(link.post, clock=lambda: link.now)
    send_all(link, sends, sends.add([(1, piece) for piece in range(1000)]))
    link.seconds_per_piece = LONGEST_S
    send_all(link, sends, sends.add([(1, piece) for piece in range(1000)]), look_s=LONGEST_S)
    link.pieces.clear()
    link.most_under_way = 0
    send_all(link, sends, sends.add([(1, piece) for piece in range(50)]), look_s=LONGEST_S)
    assert link.most_under_way <= FEWEST + 1


def test_a_peer_that_takes_nothing_keeps_others_from_nothing():
    link = Link(1e-3)
    hung = Piece(link, float("inf"))
    sends = PacedSends(lambda buffer, peer: hung if peer == 1 else link.post(buffer, peer), clock=lambda: link.now)
    stuck = sends.add([(1, piece) for piece in range(10)])
    send_all(link, sends, sends.add([(2, piece) for piece in range(10)]))
    assert stuck.pieces_left == {1: 10}


def test_an_error_is_kept_for_who_waits():
    class Broken:
        def Test(self):  # noqa: N802 - MPI's name
            raise RuntimeError("the peer is gone")

    def refuse(buffer, peer):
        raise RuntimeError("the peer is gone")

    for post in (lambda buffer, peer: Broken(), refuse):
        check_error_is_kept(PacedSends(post))


def check_error_is_kept(sends):
    message = sends.add([(1, "a"), (1, "b"), (1, "c")])
    for _ in range(3):
        sends.drive()
    assert str(message.error) == "the peer is gone"
    assert not message.pieces_left


@pytest.mark.parallel([2, 4])
def test_what_gives_way_arrives_whole_and_is_overtaken():
    from windrow.comm.mpi_world import PACED_MESSAGE_BYTES, MPIWorld

    world = MPIWorld(deadline_s=60)
    length = 20 * PACED_MESSAGE_BYTES // 8 + 3

    def exchange(number):
        sends = [torch.full((length,), 100 * number + 10 * world.rank + peer) for peer in range(world.size)]
        receives = [torch.zeros(length, dtype=torch.int64) for _ in range(world.size)]
        return world.start_exchange(sends, receives, stage="test", gives_way=True), sends, receives

    first, second = exchange(1), exchange(2)
    # Neither of the two is over when this is.
    total = world.all_reduce(torch.ones(5), stage="test")
    assert torch.equal(total, torch.full((5,), float(world.size)))
    world.all_to_all_counts([3] * world.size, stage="test")
    for number, (pending, _, receives) in ((2, second), (1, first)):
        pending.wait()
        for peer, received in enumerate(receives):
            if peer != world.rank:
                assert torch.equal(received, torch.full((length,), 100 * number + 10 * peer + world.rank))
    world.close()


@pytest.mark.parallel(2)
def test_a_peer_that_does_not_take_it_is_named():
    from mpi4py import MPI

    from windrow.comm.errors import DeadlineError
    from windrow.comm.mpi_world import MPIWorld

    world = MPIWorld(deadline_s=0.3 if MPI.COMM_WORLD.rank == 0 else 60)
    nothing = torch.empty(0)
    sent = torch.arange(100_000)
    if world.rank == 0:
        pending = world.start_exchange([nothing, sent], [nothing, nothing], stage="rows", gives_way=True)
        with pytest.raises(DeadlineError, match=r"exchange in stage 'rows': .* rank\(s\) 1 after"):
            pending.wait()
        world.deadline_s = 60
        MPI.COMM_WORLD.send("come", dest=1)
        world.barrier(stage="test")
    else:
        MPI.COMM_WORLD.recv(source=0)
        arrived = torch.empty_like(sent)
        world.start_exchange([nothing, nothing], [arrived, nothing], stage="rows", gives_way=True).wait()
        assert torch.equal(arrived, sent)
        world.barrier(stage="test")
    world.close()

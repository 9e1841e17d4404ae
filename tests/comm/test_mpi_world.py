"""What is special about MPI; the rest is in test_world."""

import os
import socket

import pytest
import torch


@pytest.mark.parallel([2, 4])
def test_long_messages_travel_in_chunks():
    from windrow.comm.mpi_world import MPIWorld

    world = MPIWorld(deadline_s=60, largest_message_bytes=7)
    counts = [5] * world.size
    send = torch.arange(15 * world.size, dtype=torch.float64).reshape(-1, 3) + 1000 * world.rank
    received = world.all_to_all(send, counts, counts, stage="test")
    mine = torch.arange(15, dtype=torch.float64) + 15 * world.rank
    for peer, part in enumerate(received.split(counts)):
        assert torch.equal(part.flatten(), mine + 1000 * peer)
    total = world.all_reduce(torch.arange(20), stage="test")
    assert torch.equal(total, torch.arange(20) * world.size)
    world.close()


@pytest.mark.parallel(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_long_sums_are_taken_in_pieces_and_keep_their_place(monkeypatch, dtype):
    from mpi4py import MPI

    from windrow.comm import mpi_world

    pieces = []
    whole = MPI.Intracomm.Iallreduce

    class Recording(MPI.Intracomm):
        def Iallreduce(self, sendbuf, recvbuf, op=MPI.SUM):  # noqa: N802 - MPI's name
            pieces.append(recvbuf.nbytes)
            return whole(self, sendbuf, recvbuf, op)

    world = mpi_world.MPIWorld(deadline_s=60)
    world._communicator = Recording(world._communicator)
    length = 2 * mpi_world.LARGEST_MESSAGE_BYTES // dtype.itemsize + 5
    values = torch.arange(length).to(dtype)
    total = world.all_reduce(values.clone(), stage="test")
    assert torch.equal(total, values * world.size)
    assert pieces == [mpi_world.LARGEST_MESSAGE_BYTES] * 2 + [5 * dtype.itemsize]
    world.close()


@pytest.mark.parallel(2)
def test_a_late_rank_is_named_and_may_still_come():
    from mpi4py import MPI

    from windrow.comm.errors import DeadlineError
    from windrow.comm.mpi_world import MPIWorld

    world = MPIWorld(deadline_s=0.3 if MPI.COMM_WORLD.rank == 0 else 60)
    nothing = torch.empty(0)
    if world.rank == 0:
        arrived = torch.zeros(1)
        pending = world.start_exchange([nothing, nothing], [nothing, arrived], stage="features")
        with pytest.raises(DeadlineError, match=r"exchange in stage 'features': .* rank\(s\) 1 after"):
            pending.wait()
        MPI.COMM_WORLD.send("send at last", dest=1)
        world.deadline_s = 60
        world.barrier(stage="after the message")
        assert arrived.item() == 7
    else:
        MPI.COMM_WORLD.recv(source=0)
        world.start_exchange([torch.full((1,), 7.0), nothing], [nothing, nothing], stage="features").wait()
        world.barrier(stage="after the message")
    world.close()


@pytest.mark.parallel(2)
def test_opening_has_a_deadline_too():
    from mpi4py import MPI

    from windrow.comm.errors import DeadlineError
    from windrow.comm.mpi_world import MPIWorld

    if MPI.COMM_WORLD.rank == 0:
        with pytest.raises(DeadlineError, match="opening in stage 'connect': still waiting for"):
            MPIWorld(deadline_s=0.3)
        MPI.COMM_WORLD.send("come now", dest=1)
        assert MPI.COMM_WORLD.recv(source=1) == "here"
    else:
        MPI.COMM_WORLD.recv(source=0)
        MPIWorld(deadline_s=60).close()
        MPI.COMM_WORLD.send("here", dest=0)


@pytest.mark.parallel(2)
def test_torch_jobs_meet_through_mpi():
    from mpi4py import MPI

    from windrow.comm.mpi_world import mpi_rendezvous

    meeting = mpi_rendezvous()
    assert meeting.size == 2
    assert meeting.host == "127.0.0.1"
    # Also before rank 0 has a world.
    socket.create_connection((meeting.host, meeting.port), timeout=60).close()
    MPI.COMM_WORLD.Barrier()
    assert (meeting.listener is not None) == (meeting.rank == 0)
    if meeting.listener is not None:
        os.close(meeting.listener)


@pytest.mark.parallel(2)
def test_messages_arrive_while_nobody_calls_mpi():
    import time

    from windrow.comm.mpi_world import MPIWorld

    world = MPIWorld(deadline_s=60)
    peer = 1 - world.rank
    nothing = torch.empty(0)
    # Long enough that the library sends it piece by piece, inside its own calls.
    sent, arrived = torch.full((4 << 20,), float(world.rank)), torch.empty(4 << 20)
    sends, receives = [nothing, nothing], [nothing, nothing]
    sends[peer], receives[peer] = sent, arrived
    with world.background_progress():
        with world.background_progress():  # One thread is enough, and the inner block does not end it.
            pass
        pending = world.start_exchange(sends, receives, stage="test")
        deadline = time.monotonic() + 60
        while not all(posted.is_over for posted in world._in_flight):
            assert time.monotonic() < deadline, "the message did not move"
            time.sleep(1e-3)
        assert torch.equal(arrived, torch.full((4 << 20,), float(peer)))
        pending.wait()
        # Both must be driven to the end before either leaves.
        world.barrier(stage="test")
    world.close()


@pytest.mark.parallel(2)
def test_closing_waits_for_messages_that_were_given_up():
    from windrow.comm.mpi_world import MPIWorld

    world = MPIWorld(deadline_s=60)
    peer = 1 - world.rank
    nothing = torch.empty(0)
    # Long enough that the library still writes into the memory after this returns.
    sends, receives = [nothing, nothing], [nothing, nothing]
    sends[peer], receives[peer] = torch.full((4 << 20,), float(world.rank)), torch.zeros(4 << 20)
    arrived = receives[peer]
    world.start_exchange(sends, receives, stage="test")
    del sends
    world.close()
    assert torch.equal(arrived, torch.full((4 << 20,), float(peer)))
    assert all(posted.is_over for posted in world._in_flight)


@pytest.mark.parallel(2)
def test_a_message_that_is_over_is_not_kept():
    from windrow.comm.mpi_world import MPIWorld

    world = MPIWorld(deadline_s=60)
    for _ in range(5):
        world.barrier(stage="test")
    assert len(world._in_flight) <= 1
    world.close()

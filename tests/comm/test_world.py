"""The same bodies on every kind of world."""

import pytest
import torch

from windrow.comm.errors import CollectiveMismatchError
from windrow.comm.loopback import Loopback

DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8]


def rows_from(sender: int, receiver: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    """Rows that tell where they come from and where they belong."""
    values = 100 * sender + 10 * receiver + torch.arange(3 * count).reshape(count, 3)
    return values.remainder(250).to(dtype)


def count_between(sender: int, receiver: int) -> int:
    """A ragged pattern with zeros in it."""
    return (2 * sender + 3 * receiver) % 4


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_all_to_all_moves_every_row_to_its_place(spmd, dtype):
    def body(world):
        ranks = range(world.size)
        send = torch.cat(
            [rows_from(world.rank, peer, count_between(world.rank, peer), dtype) for peer in ranks]
        )
        send_counts = [count_between(world.rank, peer) for peer in ranks]
        receive_counts = world.all_to_all_counts(send_counts, stage="test")
        received = world.all_to_all(send, send_counts, receive_counts, stage="test")
        expected = torch.cat(
            [rows_from(peer, world.rank, count_between(peer, world.rank), dtype) for peer in ranks]
        )
        return torch.equal(received, expected) and received.dtype == dtype

    assert all(spmd(body))


def test_many_operations_in_flight_do_not_mix(spmd):
    def body(world):
        ones = [1] * world.size
        started = [
            world.start_all_to_all(
                torch.full((world.size, 2), 10.0 * world.rank + number), ones, ones, stage="test"
            )
            for number in range(5)
        ]
        sums = [world.start_all_reduce(torch.full((3,), float(number)), stage="test") for number in range(5)]
        for number, pending in reversed(list(enumerate(started))):
            expected = 10.0 * torch.arange(world.size)[:, None] + number
            assert torch.equal(pending.wait(), expected.expand(-1, 2))
        for number, pending in enumerate(sums):
            assert torch.equal(pending.wait(), torch.full((3,), float(number * world.size)))

    spmd(body)


@pytest.mark.parametrize("op", ["sum", "max", "min"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.int32], ids=str)
def test_all_reduce_equals_the_plain_reduction(spmd, op, dtype):
    def values(rank):
        return (torch.arange(12).reshape(3, 4) * (rank + 1) % 7).to(dtype)

    def body(world):
        tensor = values(world.rank)
        result = world.all_reduce(tensor, stage="test", op=op)
        everyone = torch.stack([values(rank) for rank in range(world.size)])
        expected = {"sum": everyone.sum(0), "max": everyone.amax(0), "min": everyone.amin(0)}[op].to(dtype)
        return result is tensor and torch.equal(result, expected)

    assert all(spmd(body))


def test_all_gather_takes_ragged_rows(spmd):
    def body(world):
        gathered = world.all_gather(torch.full((world.rank, 2), float(world.rank)), stage="test")
        return [part.tolist() for part in gathered]

    results = spmd(body)
    expected = [[[float(rank)] * 2] * rank for rank in range(len(results))]
    assert all(result == expected for result in results)


def test_broadcast_and_objects(spmd):
    def body(world):
        root = world.size - 1
        tensor = world.broadcast(torch.full((2, 2), float(world.rank)), root=root, stage="test")
        word = world.broadcast_object(f"from {world.rank}", root=root, stage="test")
        everyone = world.all_gather_object({"rank": world.rank}, stage="test")
        world.barrier(stage="test")
        return tensor.tolist(), word, everyone

    results = spmd(body)
    last = len(results) - 1
    expected = ([[float(last)] * 2] * 2, f"from {last}", [{"rank": rank} for rank in range(last + 1)])
    assert all(result == expected for result in results)


def test_debug_mode_raises_the_same_error_on_every_rank(spmd):
    def body(world):
        world.all_reduce(torch.ones(3), stage="agreed")
        try:
            world.all_reduce(torch.ones(2 + world.rank), stage="disagreed")
        except CollectiveMismatchError as error:
            return str(error)
        return "no error"

    results = spmd(body, debug=True)
    assert len(set(results)) == 1
    if len(results) > 1:
        assert "rank 0: all_reduce(stage=disagreed, shape=(2,)" in results[0]
        assert "rank 1: all_reduce(stage=disagreed, shape=(3,)" in results[0]


def test_the_root_alone_gathers_objects(spmd):
    def body(world):
        root = world.size - 1
        return world.gather_object(
            {"rank": world.rank, "text": "x" * 1000 * world.rank}, root=root, stage="test"
        )

    *others, gathered = spmd(body, debug=True)
    assert [found["rank"] for found in gathered] == list(range(len(gathered)))
    assert [len(found["text"]) for found in gathered] == [1000 * rank for rank in range(len(gathered))]
    assert others == [[]] * (len(gathered) - 1)


def test_counts_that_do_not_match_the_rows_are_refused():
    world = Loopback.single()
    with pytest.raises(ValueError, match=r"send_counts \[2\] must be non-negative and add up to the 3 rows"):
        world.all_to_all(torch.ones(3, 1), [2], [2], stage="test")
    with pytest.raises(ValueError, match="expected one count for each of 1 ranks, got 2 to send"):
        world.all_to_all(torch.ones(3, 1), [2, 1], [3], stage="test")


def test_what_a_rank_sends_itself_is_what_it_receives():
    with pytest.raises(ValueError, match="rank 0 sends itself 1 rows but is to receive 3"):
        Loopback.single().all_to_all(torch.ones(1, 2), [1], [3], stage="test")


@pytest.mark.parametrize(
    "out",
    [torch.empty(2, 2), torch.empty(3, 1), torch.empty(3, 2, dtype=torch.float64)],
    ids=["rows", "shape", "dtype"],
)
def test_an_out_that_does_not_fit_is_refused(out):
    with pytest.raises(ValueError, match=r"but torch.float32 \[3, 2\] is to be received"):
        Loopback.single().all_to_all(torch.ones(3, 2), [3], [3], stage="test", out=out)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_tensors_are_received_in_page_locked_memory():
    from windrow.comm.mpi_world import MPIWorld

    world = MPIWorld()
    assert world._incoming(torch.empty(4, device="cuda")).is_pinned()
    world.close()


def test_dtypes_that_cannot_be_added_are_refused():
    with pytest.raises(TypeError, match=r"all_reduce of torch\.float16: convert to one of"):
        Loopback.single().all_reduce(torch.ones(3, dtype=torch.float16), stage="test")


def test_meter_counts_rows_and_bytes_by_stage_and_peer():
    from windrow.comm.meter import Meter

    def body(world):
        world.meter = Meter()
        ones = [1] * world.size
        world.all_to_all(torch.ones(world.size, 4), ones, ones, stage="features")
        return world.meter

    for rank, meter in enumerate(Loopback.run(2, body)):
        assert set(meter.waiting_seconds) == {stage for stage, _ in meter.table()}
        traffic = meter.totals("features", peer=1 - rank)
        assert (traffic.rows_sent, traffic.bytes_sent) == (1, 16)
        assert (traffic.rows_received, traffic.bytes_received) == (1, 16)

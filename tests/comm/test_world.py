"""The same bodies on every kind of world, on subgroups of it, and on hosts of several ranks."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from windrow.comm import errors
from windrow.comm.errors import CollectiveMismatchError, DeadlineError, RecipeError
from windrow.comm.hierarchy import hierarchical
from windrow.comm.loopback import Loopback
from windrow.comm.meter import Meter, Tracer
from windrow.comm.wire import make_codec

GROUPS = {1: [[0]], 2: [[1, 0]], 4: [[2, 0], [1, 3]]}
HOSTS = {1: "a", 2: "aa", 4: "abaa"}


@pytest.fixture(params=["whole", "subgroup", "hosts"])
def everywhere(request, spmd):
    """Runs a body on a world, on the subgroups of one, of which the first one's results count, or between hosts."""
    groups = []

    def run(body, *, debug=False):
        def on_part(world):
            if request.param == "subgroup":
                groups[:] = GROUPS[world.size]
                return body(world.split(groups))
            return body(hierarchical(world, HOSTS[world.size]) if request.param == "hosts" else world)

        results = spmd(on_part, debug=debug)
        return [results[rank] for rank in groups[0]] if groups else results

    return run


DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8]


def count_between(sender: int, receiver: int) -> int:
    """A ragged pattern with zeros in it."""
    return (2 * sender + 3 * receiver) % 4


def rows_between(sender: int, receiver: int, dtype: torch.dtype) -> torch.Tensor:
    """Rows that tell where they come from and where they belong."""
    values = 100 * sender + 10 * receiver + torch.arange(3 * count_between(sender, receiver)).reshape(-1, 3)
    return values.remainder(250).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_all_to_all_moves_every_row_to_its_place(everywhere, dtype):
    def body(world):
        ranks = range(world.size)
        send = torch.cat([rows_between(world.rank, peer, dtype) for peer in ranks])
        send_counts = [count_between(world.rank, peer) for peer in ranks]
        receive_counts = world.all_to_all_counts(send_counts, stage="test")
        received = world.all_to_all(send, send_counts, receive_counts, stage="test")
        expected = torch.cat([rows_between(peer, world.rank, dtype) for peer in ranks])
        return torch.equal(received, expected) and received.dtype == dtype

    assert all(everywhere(body))


def test_many_operations_in_flight_do_not_mix(everywhere):
    def body(world):
        ones = [1] * world.size
        sends = [torch.full((world.size, 2), 10.0 * world.rank + number) for number in range(5)]
        started = [world.start_all_to_all(send, ones, ones, stage="test") for send in sends]
        sums = [world.start_all_reduce(torch.full((3,), float(number)), stage="test") for number in range(5)]
        for number, pending in reversed(list(enumerate(started))):
            expected = 10.0 * torch.arange(world.size)[:, None] + number
            assert torch.equal(pending.wait(), expected.expand(-1, 2))
        for number, pending in enumerate(sums):
            assert torch.equal(pending.wait(), torch.full((3,), float(number * world.size)))

    everywhere(body)


def test_another_thread_communicates_through_a_duplicate(everywhere):
    """In whatever order the two threads of a rank get to it."""

    def body(world):
        others = [world.duplicate(), world.duplicate()]
        world.meter = Meter()
        ones = [1] * world.size

        def exchange(through, offset):
            found = []
            for number in range(40):
                send = torch.full((world.size, 1), 1000.0 * world.rank + offset + number)
                found.append(through.all_to_all(send, ones, ones, stage=f"from {offset}").flatten().tolist())
            return found

        with ThreadPoolExecutor(2) as pool:
            theirs = [pool.submit(exchange, other, 100 * number) for number, other in enumerate(others, 1)]
            if world.rank % 2:
                time.sleep(0.01)
            found = [exchange(world, 0), *(one.result() for one in theirs)]
        for offset, rows in zip((0, 100, 200), found, strict=True):
            assert rows == [[1000.0 * peer + offset + number for peer in range(world.size)] for number in range(40)]
            assert world.meter.totals(f"from {offset}").rows_sent == 40 * (world.size - 1)
        # Only this thread's time is accounted for.
        assert world.meter.waiting_seconds.keys() == {"from 0"}

    everywhere(body)


@pytest.mark.parametrize("op", ["sum", "max", "min"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.int32], ids=str)
def test_all_reduce_equals_the_plain_reduction(everywhere, op, dtype):
    def values(rank):
        return (torch.arange(12).reshape(3, 4) * (rank + 1) % 7).to(dtype)

    def body(world):
        tensor = values(world.rank)
        result = world.all_reduce(tensor, stage="test", op=op)
        everyone = torch.stack([values(rank) for rank in range(world.size)])
        expected = {"sum": everyone.sum(0), "max": everyone.amax(0), "min": everyone.amin(0)}[op].to(dtype)
        return result is tensor and torch.equal(result, expected)

    assert all(everywhere(body))


@pytest.mark.parametrize("codec", ["fp32", "fp16", "bf16"])
def test_encoded_sums_are_near_and_the_same_on_every_rank(everywhere, codec):
    def body(world):
        generator = torch.Generator().manual_seed(world.rank)
        summed = [torch.randn(n, generator=generator) for n in (0, 1, 37)]
        exact = [world.all_reduce(one.clone(), stage="test") for one in summed]
        world.meter = meter = Meter()
        started = [world.start_all_reduce(one, stage="test", codec=make_codec(codec)) for one in summed]
        for pending in started[:: 1 if world.rank else -1]:  # Ranks may look after them in any order.
            pending.test()
        for pending, wanted in zip(started, exact, strict=True):
            torch.testing.assert_close(pending.wait(), wanted, rtol=2e-2, atol=5e-2)
        assert meter.totals().bytes_reduced == (world.size > 1) * 38 * (4 if codec == "fp32" else 2)
        world.meter = None
        return torch.cat(summed).tolist()

    results = everywhere(body)
    assert all(result == results[0] for result in results)


@pytest.mark.parametrize(("op", "dtype"), [("max", torch.float32), ("sum", torch.float64)])
def test_codecs_are_for_float32_sums(op, dtype):
    with pytest.raises(TypeError, match="codecs are for sums of float32"):
        Loopback.single().all_reduce(torch.ones(2, dtype=dtype), stage="test", op=op, codec=make_codec("bf16"))


def test_all_gather_takes_ragged_rows(everywhere):
    def body(world):
        gathered = world.all_gather(torch.full((world.rank, 2), float(world.rank)), stage="test")
        return [part.tolist() for part in gathered]

    results = everywhere(body)
    expected = [[[float(rank)] * 2] * rank for rank in range(len(results))]
    assert all(result == expected for result in results)


def test_objects(everywhere):
    def body(world):
        root = world.size - 1
        word = world.broadcast_object(f"from {world.rank}", root=root, stage="test")
        everyone = world.all_gather_object({"rank": world.rank}, stage="test")
        world.barrier(stage="test")
        return word, everyone

    results = everywhere(body)
    last = len(results) - 1
    expected = (f"from {last}", [{"rank": rank} for rank in range(last + 1)])
    assert all(result == expected for result in results)


def test_what_rank_0_makes_or_refuses_every_rank_hears(everywhere):
    def body(world):
        def refuse():
            raise RecipeError(f"refused by {world.rank}")

        with pytest.raises(RecipeError, match="refused by 0"):
            world.from_rank_0(refuse, stage="test")
        return world.from_rank_0(lambda: [world.rank], stage="test")

    assert all(result == [0] for result in everywhere(body))


def test_debug_mode_raises_the_same_error_on_every_rank(everywhere):
    def body(world):
        world.all_reduce(torch.ones(3), stage="agreed")
        try:
            world.all_reduce(torch.ones(2 + world.rank), stage="disagreed")
        except CollectiveMismatchError as error:
            return str(error)
        return "no error"

    def numbers_of_ranks(world):
        return body(world), list(world.ranks)

    results, ranks = zip(*everywhere(numbers_of_ranks, debug=True), strict=True)
    assert len(set(results)) == 1
    if len(results) > 1:
        assert f"rank {ranks[0][0]}: all_reduce(stage=disagreed, shape=(2,)" in results[0]
        assert f"rank {ranks[0][1]}: all_reduce(stage=disagreed, shape=(3,)" in results[0]


def test_the_root_alone_gathers_objects(everywhere):
    def body(world):
        root = world.size - 1
        mine = {"rank": world.rank, "text": "x" * 1000 * world.rank}
        return world.gather_object(mine, root=root, stage="test")

    *others, gathered = everywhere(body, debug=True)
    assert [found["rank"] for found in gathered] == list(range(len(gathered)))
    assert [len(found["text"]) for found in gathered] == [1000 * rank for rank in range(len(gathered))]
    assert others == [[]] * (len(gathered) - 1)


def test_counts_that_do_not_match_the_rows_are_refused():
    world = Loopback.single()
    with pytest.raises(ValueError, match=r"send_counts \[2\] must be non-negative and add up to the 3 rows"):
        world.all_to_all(torch.ones(3, 1), [2], [2], stage="test")
    with pytest.raises(ValueError, match="expected one count for each of 1 ranks, got 2 to send"):
        world.all_to_all(torch.ones(3, 1), [2, 1], [3], stage="test")
    with pytest.raises(ValueError, match="rank 0 sends itself 1 rows but is to receive 3"):
        world.all_to_all(torch.ones(1, 2), [1], [3], stage="test")


@pytest.mark.parametrize("out", [torch.empty(2, 2), torch.empty(3, 1), torch.empty(3, 2, dtype=torch.float64)])
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


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ([[0, 1], [1, 2, 3]], r"Name each rank from 0 to 3 in one group"),
        ([[0, 1], [3]], r"groups \[\[0, 1\], \[3\]\] of 4 ranks: a rank is missing"),
        ([[0, 1, 2, 3, 4], [-1]], r"-1.* out of range"),
        ([[0, 0], [1, 2]], r"named more than once"),
    ],
)
def test_a_split_that_is_none_is_refused_on_every_rank(groups, message):
    def body(world):
        with pytest.raises(RecipeError, match=message):
            world.split(groups)
        world.barrier(stage="nobody hangs")

    Loopback.run(4, body, deadline_s=10)


def test_ranks_that_split_differently_hear_of_each_other():
    def body(world):
        with pytest.raises(CollectiveMismatchError, match=r"rank 1: split\(groups=\[\[0, 1\]\]\)"):
            world.split([[0, 1]] if world.rank else [[0], [1]])

    Loopback.run(2, body, deadline_s=10)


def test_subgroups_count_by_the_numbers_of_the_job():
    def body(world):
        world.meter, world.tracer = Meter(), Tracer()
        pair = world.split([[0, 2], [3, 1]]).split([[1, 0]])
        pair.all_to_all(torch.ones(2, 4), [1, 1], [1, 1], stage="rows")
        assert pair.tracer.spans[0].bytes_sent == 16
        if world.rank == 3:
            pair.deadline_s = 0.1
            with pytest.raises(DeadlineError, match=r"rank 3 in the subgroup of ranks 1, 3, .* rank\(s\) 1"):
                pair.barrier(stage="the other is late")
        if world.rank == 1:
            time.sleep(0.5)
            pair.barrier(stage="the other is late")
        return [world.meter.totals("rows", peer=peer).bytes_received for peer in range(4)]

    assert Loopback.run(4, body) == [[0, 0, 16, 0], [0, 0, 0, 16], [16, 0, 0, 0], [0, 16, 0, 0]]


def test_collectives_of_several_subgroups_and_the_whole_may_be_under_way():
    def body(world):
        pair, other = world.split([[0, 1], [2, 3]]), world.split([[0, 2], [1, 3]])
        started = [
            one.start_all_reduce(torch.full((5,), float(10**n)), stage="test", codec=make_codec("bf16"))
            for n, one in enumerate([pair, world, other, pair])
        ]
        for pending in started if world.rank % 2 else started[::-1]:
            pending.test()
        return [pending.wait()[0].item() for pending in started]

    assert Loopback.run(4, body) == [[2, 40, 200, 2000]] * 4


def test_every_error_is_a_windrow_error_and_those_of_users_are_value_errors():
    kinds = [kind for name in errors.__all__ if isinstance(kind := getattr(errors, name), type)]
    assert all(issubclass(kind, errors.WindrowError) for kind in kinds)
    assert all(issubclass(kind, ValueError) for kind in (errors.DataError, errors.RecipeError, errors.StoreError))
    between = errors.CollectiveMismatchError, errors.DeadlineError, errors.PeerFailedError
    assert all(issubclass(kind, errors.CommunicationError) for kind in between)


def test_different_operations_are_told_apart():
    def body(world):
        if world.rank == 0:
            world.barrier(stage="end of step")
        else:
            world.all_reduce(torch.ones(4), stage="gradients")

    with pytest.raises(CollectiveMismatchError) as caught:
        Loopback.run(3, body, debug=True)
    message = str(caught.value)
    assert "rank 0: all_to_all(stage=end of step" in message
    assert "rank 2: all_reduce(stage=gradients, shape=(4,), dtype=torch.float32, op=sum)" in message
    assert "look for a branch that depends on the rank" in message

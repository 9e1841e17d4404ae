"""Rows arrive where a plain copy of all blocks would put them, and gradients take the same way back."""

import gc
import weakref
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from windrow.comm.loopback import Loopback
from windrow.comm.meter import Meter
from windrow.comm.route import Block, Landing, Route
from windrow.comm.wire import Wire, make_codec

COLUMNS = 6


@dataclass
class Travel:
    """One block on its way, as both ends know it."""

    sender: int
    receiver: int
    rows: np.ndarray
    """Of the sender's source."""
    listed: bool
    """Whether the sender names its rows one by one, not as a range."""
    columns: tuple[int, int]
    places: np.ndarray
    """Rows of the receiver's target."""


def draw_travels(seed: int, size: int) -> list[Travel]:
    """Blocks between all pairs, of which some are empty."""
    generator = np.random.default_rng([seed, size])
    free_places = [generator.permutation(30) for _ in range(size)]
    travels = []
    for sender in range(size):
        free = 0
        for receiver in range(size):
            count = int(generator.integers(0, 5))
            rows = np.arange(free, free + count)
            free += count
            start = int(generator.integers(0, COLUMNS - 1))
            columns = (start, int(generator.integers(start + 1, COLUMNS + 1)))
            if generator.integers(0, 2):
                columns = (0, COLUMNS)
            places, free_places[receiver] = free_places[receiver][:count], free_places[receiver][count:]
            travels.append(Travel(sender, receiver, rows, bool(generator.integers(0, 2)), columns, places))
    return travels


def source_of(rank: int) -> torch.Tensor:
    """Small whole numbers, which every codec keeps."""
    return torch.from_numpy(np.random.default_rng(rank).integers(-60, 60, (24, COLUMNS)).astype(np.float32))


def route_of(wire: Wire, travels: list[Travel]) -> Route:
    rank, size = wire.world.rank, wire.world.size
    outgoing, landings, arriving = ([[] for _ in range(size)] for _ in range(3))
    for travel in travels:
        if travel.sender == rank:
            rows = torch.from_numpy(travel.rows)
            span = slice(int(travel.rows[0]), int(travel.rows[-1]) + 1) if len(travel.rows) else slice(0, 0)
            outgoing[travel.receiver].append(Block(0, rows if travel.listed else span, travel.columns))
        if travel.receiver == rank:
            target = Block(0, torch.from_numpy(travel.places), travel.columns)
            landings[travel.sender].append(Landing(len(landings[travel.sender]), target))
            arriving[travel.sender].append((len(travel.rows), travel.columns[1] - travel.columns[0]))
    return Route(wire, outgoing, landings, arriving)


def expected_target(rank: int, travels: list[Travel]) -> torch.Tensor:
    target = torch.zeros(30, COLUMNS)
    for travel in travels:
        if travel.receiver == rank:
            part = source_of(travel.sender)[travel.rows, slice(*travel.columns)]
            target[travel.places, slice(*travel.columns)] += part
    return target


def expected_gradient(rank: int, travels: list[Travel]) -> torch.Tensor:
    gradient = torch.zeros(24, COLUMNS)
    for travel in travels:
        if travel.sender == rank:
            part = weights_of(travel.receiver)[travel.places, slice(*travel.columns)]
            for row, values in zip(travel.rows, part, strict=True):
                gradient[row, slice(*travel.columns)] += values
    return gradient


def weights_of(rank: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(rank + 9).integers(-9, 9, (30, COLUMNS)).astype(np.float32))


CODECS = ("fp32", "bf16")


def check_both_ways(world, seed, codec, *, shared_memory=False):
    codecs = {"codec": make_codec(codec), "gradient_codec": make_codec(codec)}
    wire = Wire(world, stage="test", **codecs, shared_memory=shared_memory)
    travels = draw_travels(seed, world.size)
    route = route_of(wire, travels)
    for _ in range(2):  # The second time in memory that the first has given back.
        source = source_of(world.rank).requires_grad_()
        transfer = route.start([source], differentiable=True)
        (target,) = transfer.finish([torch.zeros(30, COLUMNS)])
        assert torch.equal(target.detach(), expected_target(world.rank, travels))
        (target * weights_of(world.rank)).sum().backward()
        expected = expected_gradient(world.rank, travels)
        went = torch.zeros(24, COLUMNS, dtype=torch.bool)
        for travel in travels:
            if travel.sender == world.rank:
                for row in travel.rows:
                    went[row, slice(*travel.columns)] = True
        assert torch.equal(source.grad[went], expected[went])


@pytest.mark.parametrize("shared_memory", [False, True])
@pytest.mark.parametrize("codec", CODECS)
def test_rows_and_gradients_arrive(spmd, codec, shared_memory):
    spmd(lambda world: [check_both_ways(world, seed, codec, shared_memory=shared_memory) for seed in range(6)])


@settings(max_examples=20)
@given(st.integers(0, 1 << 30), st.sampled_from([1, 2, 3, 5]))
def test_rows_and_gradients_arrive_from_anywhere(seed, size):
    Loopback.run(size, lambda world: check_both_ways(world, seed, "fp32"))


@pytest.mark.parametrize("shared_memory", [False, True])
def test_several_transfers_under_way_do_not_disturb_each_other(spmd, shared_memory):
    def body(world):
        wire = Wire(world, stage="test", shared_memory=shared_memory)
        drawn = [draw_travels(seed, world.size) for seed in range(4)]
        started = [route_of(wire, travels).start([source_of(world.rank)], differentiable=True) for travels in drawn]
        for transfer, travels in zip(started, drawn, strict=True):
            (target,) = transfer.finish([torch.zeros(30, COLUMNS)])
            assert torch.equal(target, expected_target(world.rank, travels))

    spmd(body)


def test_what_is_between_start_and_finish_is_differentiated_while_gradients_travel():
    """The overlap that the two nodes of the graph are for."""

    def body(world):
        events = []
        wire = Wire(world, stage="test")
        travels = draw_travels(1, world.size)
        source = source_of(world.rank).requires_grad_()
        weight = torch.ones((), requires_grad=True)
        post = world.start_exchange
        transfer = route_of(wire, travels).start([source], differentiable=True)
        between = weight * 2
        between.register_hook(lambda _: events.append("between"))
        (target,) = transfer.finish([torch.zeros(30, COLUMNS)])
        source.register_hook(lambda _: events.append("source"))

        def posted(*arguments, **keywords):
            events.append("posted")
            return post(*arguments, **keywords)

        world.start_exchange = posted
        (target.sum() * between).backward()
        return events

    assert Loopback.run(2, body) == [["posted", "between", "source"]] * 2


@pytest.mark.parametrize("shared_memory", [False, True])
def test_a_codec_halves_the_bytes_and_spares_own_rows(spmd, shared_memory):
    def body(world):
        values = torch.full((3, 4), 1 + 2**-12)
        world.meter = Meter()
        received = {}
        for name in ("fp32", "bf16"):
            codecs = {"codec": make_codec(name), "gradient_codec": make_codec(name)}
            wire = Wire(world, stage=name, **codecs, shared_memory=shared_memory)
            everyone = range(world.size)
            places = [slice(3 * peer, 3 * peer + 3) for peer in everyone]
            positions = [torch.arange(3) + 3 * peer for peer in everyone]
            route = Route.of_rows(wire, positions, places, (4,))
            source = values.repeat(world.size, 1).requires_grad_()
            transfer = route.start([source], differentiable=True)
            (target,) = transfer.finish([torch.zeros(3 * world.size, 4)])
            own = target[3 * world.rank : 3 * world.rank + 3].detach()
            assert torch.equal(own, values)
            assert (target != 1).sum() == (own.numel() if name == "bf16" else target.numel())
            target.sum().backward()
            received[name] = [world.meter.totals(f"{name}: {what}").bytes_received for what in ("rows", "gradients")]
        assert received["fp32"] == [48 * (world.size - 1)] * 2
        assert received["bf16"] == [24 * (world.size - 1)] * 2

    spmd(body)


@pytest.mark.parametrize("shared_memory", [False, True])
@pytest.mark.parametrize("codec", ["fp32", "bf16"])
@pytest.mark.parametrize("listed", [False, True])
def test_rows_of_a_block_are_copied_or_added_where_they_belong(spmd, codec, shared_memory, listed):
    """Runs of columns, and vectors anywhere in a matrix: what a pooled lookup lands."""

    def body(world):
        codecs = {"codec": make_codec(codec), "gradient_codec": make_codec(codec)}
        wire = Wire(world, stage="test", **codecs, shared_memory=shared_memory)
        size, rank = world.size, world.rank
        runs = np.array([[0, 4, 2], [3, 0, 3]])
        # The last one copies columns; the others add vectors: row 3 from column 1, row 0 from column 0, and so on.
        rows, firsts = torch.tensor([3, 0, 2]), torch.tensor([1, 0, 1])
        places = rows * 7 + firsts
        local = [Block(0, slice(0, 3), (0, COLUMNS))]
        chosen = [3 * peer + (torch.tensor([2, 0, 1]) if listed else torch.arange(3)) for peer in range(size)]
        blocks = [
            [Block(0, picked) if listed else Block(0, slice(3 * peer, 3 * peer + 3), (0, COLUMNS))]
            for peer, picked in enumerate(chosen)
        ]
        landings = [[Landing(0, Block(0, places), add=True)] for _ in range(size)]
        landings.append([Landing(0, Block(0, slice(1, 4)), runs)])
        route = Route(wire, [*blocks, local], landings, [[(3, COLUMNS)]] * size)
        sources = [torch.arange(18.0 * size).view(-1, COLUMNS) + owner for owner in range(size)]
        source = sources[rank].clone().requires_grad_()
        copied = torch.arange(18.0).view(3, COLUMNS).requires_grad_()
        (target,) = route.start([source], differentiable=True).finish([torch.zeros(5, 7)], [copied])
        expected = torch.zeros(5, 7)
        expected[1:4, 4:6] = copied.detach()[:, 0:2]
        expected[1:4, 0:3] = copied.detach()[:, 3:6]
        for owner in range(size):
            for vector, row, first in zip(sources[owner][chosen[rank]], rows, firsts, strict=True):
                expected[row, first : first + COLUMNS] += vector
        assert torch.equal(target.detach(), expected)
        weights = torch.arange(35.0).view(5, 7)
        (target * weights).sum().backward()
        wanted = [weights[row, first : first + COLUMNS] for row, first in zip(rows, firsts, strict=True)]
        for picked in chosen:
            assert torch.equal(source.grad[picked], torch.stack(wanted))
        assert torch.equal(copied.grad[:, [0, 1, 3, 4, 5]], weights[1:4, [4, 5, 0, 1, 2]])

    spmd(body)


def test_local_matrices_land_without_a_message():
    world = Loopback.single()
    wire = Wire(world, stage="test")
    local = torch.arange(8.0).view(2, 4).requires_grad_()
    whole = Block(0, slice(0, 2), (0, 4))
    landing = Landing(0, Block(0, slice(1, 3)), np.array([[1, 2, 2]]))
    route = Route(wire, [[], [whole]], [[], [landing]], [[]])
    (target,) = route.start([], differentiable=True).finish([torch.ones(3, 5)], [local])
    expected = torch.ones(3, 5)
    expected[1:3, 2:4] = torch.arange(8.0).view(2, 4)[:, 1:3]
    assert torch.equal(target.detach(), expected)
    target.sum().backward()
    assert torch.equal(local.grad[:, 1:3], torch.ones(2, 2))
    with pytest.raises(ValueError, match="cannot land at once: give the targets to finish"):
        route.start([], into=[torch.ones(3, 5)])


def test_nothing_is_kept_without_gradients():
    wire = Wire(Loopback.single(), stage="test")
    route = Route.of_rows(wire, [torch.arange(2)], [slice(0, 2)], (COLUMNS,))
    with torch.no_grad():
        source = source_of(0).requires_grad_()
        (target,) = route.start([source], differentiable=True).finish([torch.zeros(2, COLUMNS)])
    assert not target.requires_grad


def test_memory_is_used_again_and_does_not_pile_up():
    wire = Wire(Loopback.single(), stage="test")
    first = wire.buffers.take(100)
    wire.buffers.give(first)
    assert wire.buffers.take(80).data_ptr() == first.data_ptr()
    wire.buffers.give(first)
    larger = wire.buffers.take(1000)  # Takes the place of the small one.
    wire.buffers.give(larger)
    assert wire.buffers.take(10).data_ptr() == larger.data_ptr()
    wire.give_after_backward(larger)
    assert wire.buffers.take(10).data_ptr() != larger.data_ptr()
    wire.wake()
    assert wire.buffers.take(500).data_ptr() == larger.data_ptr()


def test_a_codec_that_cannot_take_the_rows_is_refused():
    with pytest.raises(TypeError, match=r"rounds floating-point rows and would spoil torch\.int64"):
        Wire(Loopback.single(), stage="test", codec=make_codec("bf16"), dtype=torch.int64)


def test_a_transfer_is_let_go_of_after_its_backward_pass():
    """At once: what waits for Python's search for cycles adds up to gigabytes."""
    rows = torch.ones(3, 2, requires_grad=True)
    route = Route.of_rows(Wire(Loopback.single(), stage="rows"), [torch.arange(3)], [torch.arange(3)], (2,))
    gc.disable()
    try:
        transfer = route.start([rows], differentiable=True)
        (found,) = transfer.finish([torch.empty(3, 2)])
        known = weakref.ref(transfer)
        found.sum().backward()
        del transfer, found
        assert known() is None
    finally:
        gc.enable()

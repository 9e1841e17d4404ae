"""Rows in few bits: by themselves, to nearest, and in messages of several blocks of several vectors."""

import math
from itertools import chain, pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from windrow.comm.errors import DataError
from windrow.comm.loopback import Loopback
from windrow.comm.quantized_codec import QuantizedCodec
from windrow.comm.route import Block, Landing, Route
from windrow.comm.wire import Wire, WireOptions, make_codec

ROWS = arrays(
    np.float32,
    array_shapes(min_dims=2, max_dims=3, min_side=1, max_side=6),
    elements=st.floats(-(2.0**60), 2.0**60, width=32),
).map(torch.from_numpy)


def half_a_step(rows: torch.Tensor, bits: int) -> torch.Tensor:
    """For each row the most that its numbers may be off: parameters are bfloat16, draws 16 bits, and steps normal."""
    flat = rows.flatten(1).double()
    low, high = flat.min(1).values, flat.max(1).values
    step = (high - low + 2.0**-7 * low.abs()) / (2**bits - 1) * (1 + 2.0**-7) + 2.0**-126
    return step * (0.5 + 2.0**-12) + 2.0**-20 * flat.abs().max(1).values


@pytest.mark.parametrize(("name", "bits"), [("int8", 8), ("int4", 4)])
@given(rows=ROWS, data=st.data())
def test_rows_go_to_the_nearest_level_and_always_to_the_same(name, bits, rows, data):
    codec = make_codec(name)
    wire = codec.encode(rows)
    assert wire.dtype == torch.uint8
    assert wire.shape == (len(rows), codec.wire_row_bytes(rows.shape[1:], rows.dtype))
    decoded = codec.decode(wire, torch.full_like(rows, math.nan))
    error = (decoded.double() - rows.double()).flatten(1).abs().max(1).values
    assert bool((error <= half_a_step(rows, bits)).all())
    picked = torch.tensor(data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=5)), dtype=torch.int64)
    assert torch.equal(codec.encode(rows[picked]), wire[picked]), "whatever is beside it"
    places = torch.arange(len(picked)).flip(0) + 1
    out = torch.zeros(len(picked) + 2, *rows.shape[1:])
    codec.decode(wire, out, positions=picked, places=places)
    assert torch.equal(out[places], decoded[picked])
    assert not out[[0, -1]].any()


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_rows_that_few_bits_cannot_hold_are_refused(value):
    rows = torch.ones(70_000, 2)
    codec = make_codec("int8")
    codec.check(rows)
    rows[69_999, 1] = value
    with pytest.raises(DataError, match=r"row 69999 holds (nan|inf) in column 1: int8 is for finite numbers"):
        codec.check(rows)
    with pytest.raises(DataError, match=r"row 69999 holds"):
        codec.encode(rows)
    with pytest.raises(TypeError, match=r"torch\.float16 cannot be quantised"):
        codec.encode(rows.half())
    with pytest.raises(TypeError, match="go through a Route"):
        make_codec("int8", rank=0).encode(rows)


def test_what_is_shorter_travels_as_it_is():
    options = WireOptions(vectors="int8")
    assert isinstance(options.vectors_codec(torch.float32), QuantizedCodec)
    assert options.vectors_codec(torch.float16).name == "fp32"


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.lists(st.sampled_from([1, 3, 8, 8, 16]), min_size=1, max_size=4), min_size=1, max_size=3),
    st.integers(0, 6),
    st.booleans(),
    st.sampled_from([4, 8]),
)
def test_each_vector_of_each_block_has_a_scale_of_its_own(widths, num_rows, at_random, bits):
    """A vector a thousand times as large as its neighbours costs them nothing, on the way there and back."""
    width = sum(map(sum, widths))
    scales = torch.cat([torch.full((each,), 1000.0**n) for n, each in enumerate(list(chain(*widths)))])
    source = torch.randn(num_rows, width, generator=torch.Generator().manual_seed(num_rows)) * scales
    bounds = np.cumsum([0, *map(sum, widths)]).tolist()
    spans = list(pairwise(bounds))

    def body(world):
        rank = world.rank if at_random else None
        codecs = [QuantizedCodec(bits, rank=rank, columns=lambda peer, sent: widths) for _ in range(2)]
        wire = Wire(world, stage="test", codec=codecs[0], gradient_codec=codecs[1])
        rows = [[slice(0, 0), slice(0, num_rows)][peer != world.rank] for peer in range(2)]
        order = torch.arange(num_rows).flip(0)
        route = Route(
            wire,
            [[Block(0, part, span) for span in spans] for part in rows],
            [
                [Landing(n, Block(0, order if peer != world.rank else order[:0], span)) for n, span in enumerate(spans)]
                for peer in range(2)
            ],
            [[(part.stop, last - first) for first, last in spans] for part in rows],
        )
        mine = source.clone().requires_grad_()
        (target,) = route.start([mine], differentiable=True).finish([torch.zeros(num_rows, width)])
        (target * source.flip(0)).sum().backward()
        return target.detach().flip(0), mine.grad

    for found in Loopback.run(2, body):
        for arrived in found:
            for vectors in zip(*(part.split(list(chain(*widths)), 1) for part in (arrived, source)), strict=True):
                here, sent = vectors
                if num_rows:
                    error = (here.double() - sent.double()).abs().max(1).values
                    assert bool((error <= (1 + at_random) * half_a_step(sent, bits)).all())


def test_vectors_at_random_are_right_on_average_and_repeat_under_the_same_key():
    values = torch.linspace(-1, 1, 64).repeat(2000, 1) ** 3

    def body(world, key):
        codec = make_codec("int4", rank=world.rank)
        codec.key = key
        ids = [torch.arange(2000) * (peer != world.rank) for peer in range(2)]
        ids[world.rank] = ids[world.rank][:0]
        places = [slice(0, len(each)) for each in ids]
        wire = Wire(world, stage="test", codec=codec)
        return Route.of_rows(wire, ids, places, (64,)).start([values]).finish([torch.empty(2000, 64)])[0]

    first, again, other = (Loopback.run(2, lambda world, key=key: body(world, key)) for key in (1, 1, 2))
    assert torch.equal(first[0], again[0])
    assert not torch.equal(first[0], other[0])
    assert not torch.equal(first[0], first[1]), "ranks draw their own"
    assert bool(((first[0].mean(0) - values[0]).abs() < 5 * 2 / 15 / 2 / 2000**0.5).all())

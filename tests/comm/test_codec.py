"""Round trips of rows over the wire."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from windrow.comm.errors import DataError, RecipeError
from windrow.comm.wire import Codec, make_codec

CODECS = [Codec("fp32"), Codec("fp16"), Codec("bf16")]
ROUNDING = [Codec("fp16"), Codec("bf16")]


def rows_of(limit):
    """float32 rows of any shape, values up to a limit."""
    shapes = array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=5)
    values = st.floats(-limit, limit, width=32)
    return arrays(np.float32, shapes, elements=values).map(torch.from_numpy)


def there_and_back(codec, rows):
    return codec.decode(codec.encode(rows), torch.empty_like(rows))


def by_name(codec):
    return codec.name


@pytest.mark.parametrize("codec", CODECS, ids=by_name)
@given(rows=rows_of(60000.0))
def test_the_wire_has_one_contiguous_row_of_known_size_per_row(codec, rows):
    wire = codec.encode(rows)
    assert wire.is_contiguous()
    assert len(wire) == len(rows)
    assert wire.nbytes == len(rows) * codec.wire_row_bytes(rows.shape[1:], rows.dtype)
    once = there_and_back(codec, rows)
    assert torch.equal(there_and_back(codec, once), once), "a second trip changes nothing"
    out = torch.full_like(rows, math.nan)
    assert codec.decode(wire, out=out) is out
    assert torch.equal(out, once)


@given(rows_of(2.0**127))
def test_fp32_gives_back_the_very_same_memory(rows):
    codec = Codec("fp32")
    assert codec.encode(rows).data_ptr() == rows.data_ptr()
    assert codec.decode(rows, out=rows) is rows


def test_fp32_takes_any_dtype_and_copies_into_other_memory():
    rows = torch.tensor([[1, 2], [3, 4]])
    assert torch.equal(there_and_back(Codec("fp32"), rows), rows)
    assert Codec("fp32").wire_row_bytes((2,), torch.int64) == 16


@pytest.mark.parametrize(
    ("codec", "limit", "relative", "least"),
    [
        (Codec("fp16"), 65504.0, 2.0**-11, 2.0**-25),
        (Codec("bf16"), float(torch.finfo(torch.bfloat16).max), 2.0**-8, 2.0**-134),
    ],
    ids=["fp16", "bf16"],
)
@given(data=st.data())
def test_errors_are_within_their_bound(codec, limit, relative, least, data):
    rows = data.draw(rows_of(limit))
    decoded = there_and_back(codec, rows)
    bound = (rows.double().abs() * relative).clamp(min=least)
    assert bool(((decoded.double() - rows.double()).abs() <= bound).all())


@pytest.mark.parametrize("codec", CODECS, ids=by_name)
def test_rows_with_gaps_in_memory_travel(codec):
    rows = torch.arange(12.0).reshape(3, 4).t()
    assert codec.encode(rows).is_contiguous()
    assert torch.equal(there_and_back(codec, rows), rows)


@pytest.mark.parametrize("codec", ROUNDING, ids=by_name)
def test_integers_are_not_rounded_in_silence(codec):
    with pytest.raises(TypeError, match=r"would spoil torch\.int64"):
        codec.encode(torch.tensor([1]))


def test_fp16_lets_large_values_overflow_and_check_refuses_them():
    codec = Codec("fp16")
    rows = torch.ones(70_000, 2)
    rows[:, 0] = math.inf
    rows[:, 1] = 65519.0
    codec.check(rows)
    rows[69_999, 1] = -65520.0
    assert there_and_back(codec, rows[69_999:]).tolist() == [[math.inf, -math.inf]]
    with pytest.raises(DataError, match=r"row 69999 holds -65520, which .*float16 cannot: it ends at 65504"):
        codec.check(rows)


def test_bf16_check_refuses_only_the_very_largest():
    Codec("bf16").check(torch.tensor([3.39e38]))
    with pytest.raises(DataError, match=r"row 0 holds 3.40282e\+38"):
        Codec("bf16").check(torch.tensor([torch.finfo(torch.float32).max]))


@pytest.mark.parametrize("codec", CODECS, ids=by_name)
@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0), (3,), (2, 3, 4)], ids=str)
def test_check_takes_rows_of_any_shape(codec, shape):
    codec.check(torch.ones(shape))


def test_a_misspelt_name_is_answered_with_the_nearest():
    with pytest.raises(RecipeError, match=r"no codec is called 'float16'. Did you mean 'fp16'\?"):
        make_codec("float16")


@pytest.mark.parametrize("name", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_what_only_converts_says_to_which_dtype(name, dtype):
    codec = make_codec(name)
    rows = torch.linspace(-9, 9, 40).view(8, 5).to(dtype)
    wire = codec.encode(rows)
    assert wire.dtype == codec.wire_dtype(dtype)
    assert torch.equal(wire, rows.to(wire.dtype))
    assert torch.equal(codec.decode(wire, out=torch.empty(8, 5)), wire.float())

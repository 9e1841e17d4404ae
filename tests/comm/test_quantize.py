"""Quantised rows against a slow, obvious reference, byte for byte; their expectation, variance, limits; GPU kernels."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from windrow.comm.errors import DataError
from windrow.comm.quantize import dequantize, expected_squared_error, packed_offsets, packed_row_bytes, quantize
from windrow.comm.random import GOLDEN, MULTIPLIERS_32, hash_ids, mix64

KEY = 0xFEDCBA9876543210
WIDTHS_IN_BITS = (1, 2, 4, 8)
LARGEST = float(torch.finfo(torch.float32).max)
BFLOAT16 = torch.arange(0x7F80, dtype=torch.int16).view(torch.bfloat16).double().numpy()
"""All that are not negative and finite, ascending; entry i has the bits i."""
TINY = 2.0**-126


def bits_of(*bits):
    return torch.tensor(bits, dtype=torch.uint8)


def packed(rows, bits, *, key=KEY, positions=None, row_ids=None, ranges=None):
    offsets = packed_offsets(bits, rows.shape[1])
    out = torch.full((int(offsets[-1]),), 0xAA, dtype=torch.uint8)
    row_ids = torch.arange(len(bits)) if row_ids is None else row_ids
    quantize(rows, positions, bits, offsets, out, key=key, row_ids=row_ids, ranges=ranges)
    return out


def unpacked(message, bits, width, *, places=None):
    out = torch.full((len(bits), width), math.nan)
    dequantize(message, bits, packed_offsets(bits, width), out, places)
    return out


def there_and_back(rows, bits, **how):
    return unpacked(packed(rows, bits, **how), bits, rows.shape[1])


def float32_bits(value):
    return int(np.float32(value).view(np.uint32))


def parameters(row, bits):
    """Least and greatest entry, and by their law step and zero point: the least that reaches, the greatest below."""
    low, high = min(row, key=lambda value: (value, not np.signbit(value))), row.max()
    if low < 0:
        zero = -BFLOAT16[np.argmax(-low <= BFLOAT16)]
    else:
        zero = math.copysign(BFLOAT16[np.nonzero(low >= BFLOAT16)[0][-1]], low)
    step = BFLOAT16[np.argmax((BFLOAT16 >= TINY) & (zero + (2**bits - 1) * BFLOAT16 >= high))]
    return low, high, np.float32(step), np.float32(zero)


def mix32(value, key):
    """Of whole numbers, as `windrow.comm.inline_kernels.mix32`."""
    first, second = MULTIPLIERS_32
    value = ((value ^ (value >> 16)) * first) & 0xFFFFFFFF
    value = ((value ^ (value >> 15) ^ key) * second) & 0xFFFFFFFF
    return value ^ (value >> 15)


def reference(row, bits, key, row_id):
    """Bytes of one row, entry after entry."""
    low, high, step, zero = parameters(row, bits)
    if low == high:
        value, levels = float32_bits(low), [float32_bits(low) & 1] + [0] * (len(row) - 1)
        header = 0x8000 | value >> 1 & 0x7FFF | value >> 16 << 16
    else:
        header = float32_bits(step) >> 16 | float32_bits(zero) >> 16 << 16
        row_key = int(hash_ids(key, np.array([row_id]))[0])
        levels = []
        for column, value in enumerate(row):
            pair = mix64(column // 2 + GOLDEN) ^ row_key
            draw = mix32(pair & 0xFFFFFFFF, row_key >> 32) >> 16 * (column % 2) & 0xFFFF
            levels.append(min(math.floor(float((value - zero) / step) + draw / 65536), 2**bits - 1))
    entries = sum(level << bits * column for column, level in enumerate(levels))
    return header.to_bytes(4, "little") + entries.to_bytes(-(-len(row) * bits // 8), "little")


@st.composite
def messages(draw, limit=1e38):
    """float32 rows, from large to less than the least normal number, and bits of each."""
    count, width = draw(st.integers(0, 5)), draw(st.integers(1, 35))
    scale = draw(st.sampled_from([limit, 100.0, 1e-3, 1e-36, 1e-43]))
    values = st.floats(-np.float32(scale), np.float32(scale), width=32) | st.sampled_from([0.0, -0.0, 1.0e-45])
    rows = draw(arrays(np.float32, (count, width), elements=values, fill=st.just(0.25)))
    bits = draw(st.lists(st.sampled_from(WIDTHS_IN_BITS), min_size=count, max_size=count))
    return torch.from_numpy(rows), bits_of(*bits)


@given(messages(), st.integers(0, 2**64 - 1), st.data())
def test_bytes_are_those_of_the_definition(message, key, data):
    rows, bits = message
    count = len(rows)
    row_ids = torch.tensor(
        data.draw(st.lists(st.integers(0, 2**62), min_size=count, max_size=count)), dtype=torch.int64
    )
    picks = st.lists(st.integers(0, count - 1), min_size=count, max_size=count) if count else st.none()
    chosen = data.draw(st.none() | picks)
    positions = None if chosen is None else torch.tensor(chosen)
    ranges = torch.full((count,), math.nan)
    found = packed(rows, bits, key=key, positions=positions, row_ids=row_ids, ranges=ranges)
    picked = (rows if positions is None else rows[positions]).numpy()
    expected = [
        reference(*of, key, row_id) for *of, row_id in zip(picked, bits.tolist(), row_ids.tolist(), strict=True)
    ]
    assert found.numpy().tobytes() == b"".join(expected)
    assert [len(row) for row in expected] == [packed_row_bytes(rows.shape[1], width) for width in bits.tolist()]
    assert np.array_equal(ranges.numpy(), np.ptp(picked, axis=1))


@given(messages(), st.integers(0, 2**64 - 1))
def test_entries_arrive_less_than_a_step_from_where_they_were(message, key):
    rows, bits = message
    arrived = there_and_back(rows, bits, key=key).numpy()
    for row, found, width in zip(rows.numpy(), arrived, bits.tolist(), strict=True):
        low, high, step, zero = parameters(row, width)
        bound = 0.0 if low == high else float(step) + float(np.abs(row).max()) * 2.0**-23
        assert np.abs(found.astype(np.float64) - row.astype(np.float64)).max() <= bound
        assert found.min() >= zero
        # Zero point and step are rounded up to 2 ** -8 of the least entry's magnitude, and up to 2 ** -7.
        assert float(step) * (2**width - 1) <= max((high - float(low)) + abs(low) / 128, TINY * 256) * (1 + 2.0**-7)


@pytest.mark.parametrize("bits", WIDTHS_IN_BITS)
@given(value=st.floats(width=32, allow_nan=False, allow_infinity=False), width=st.integers(1, 20))
def test_rows_of_equal_entries_come_back_bit_for_bit(bits, value, width):
    rows = torch.full((2, width), value)
    assert there_and_back(rows, bits_of(bits, bits)).view(torch.int32).equal(rows.view(torch.int32))


@given(
    st.sampled_from(WIDTHS_IN_BITS), st.integers(-126, 100), st.integers(128, 255), st.integers(-200, 200), st.randoms()
)
def test_multiples_of_the_step_come_back_exactly_whatever_is_drawn(bits, exponent, fraction, zero, random):
    levels = [0, 2**bits - 1, *(random.randrange(2**bits) for _ in range(30))]
    rows = (torch.tensor([levels]) + float(zero)) * (fraction * 2.0 ** (exponent - 7) if zero == 0 else 2.0**exponent)
    for key in range(20):
        assert torch.equal(there_and_back(rows, bits_of(bits), key=key), rows)


@pytest.mark.parametrize("bits", WIDTHS_IN_BITS)
def test_expectation_is_the_entry_and_variance_that_of_the_paper(bits):
    width, draws = 3000, 1000
    row = torch.from_numpy(np.random.default_rng(3).uniform(-2, 5, width).astype(np.float32))
    widths = torch.full((draws,), bits, dtype=torch.uint8)
    positions, ranges = torch.zeros(draws, dtype=torch.int64), torch.empty(draws)
    arrived = there_and_back(row[None], widths, positions=positions, row_ids=torch.arange(draws), ranges=ranges)
    step = parameters(row.numpy(), bits)[2]
    error = arrived.double() - row.double()
    # An entry deviates by at most half a step (one standard deviation), and a decision by 2 ** -16.
    assert error.mean(0).abs().max() <= step * (5 / 2 / math.sqrt(draws) + 2.0**-16)
    assert abs(error.mean()) <= step * (5 / 2 / math.sqrt(draws * width) + 2.0**-16)
    expected = expected_squared_error(ranges, width, widths)
    assert expected[0] == pytest.approx(width * 7**2 / (6 * (2**bits - 1) ** 2), rel=0.01)
    assert error.square().sum(1).mean() == pytest.approx(float(expected[0]), rel=0.06)


def test_draws_of_neighbours_and_of_rows_are_independent():
    count, width = 2000, 40
    rows = torch.full((count, width), 0.5)
    rows[:, 0], rows[:, -1] = 0, 1
    drawn = there_and_back(rows, torch.full((count,), 1, dtype=torch.uint8))[:, 1:-1]
    assert set(drawn.unique().tolist()) == {0, 1}
    limit = 5 / math.sqrt(count)
    assert torch.corrcoef(drawn.T).fill_diagonal_(0).abs().max() < limit
    assert abs(float(torch.corrcoef(torch.stack([drawn[1:].flatten(), drawn[:-1].flatten()]))[0, 1])) < limit


def test_a_row_is_the_same_bytes_wherever_it_stands_in_whatever_message():
    rows = torch.randn(50, 21, generator=torch.Generator().manual_seed(1))
    bits = bits_of(*(WIDTHS_IN_BITS[row % 4] for row in range(50)))
    offsets = packed_offsets(bits, 21)
    whole = packed(rows, bits)
    some = torch.tensor([44, 3, 17, 3, 0])
    message = packed(rows, bits[some], positions=some, row_ids=some)
    assert torch.equal(message, torch.cat([whole[offsets[row] : offsets[row + 1]] for row in some]))
    assert not torch.equal(whole, packed(rows, bits, key=KEY + 1))
    assert not torch.equal(whole, packed(rows, bits, row_ids=torch.arange(1, 51)))


def test_rows_are_put_or_added_where_they_belong():
    rows = torch.randn(4, 19, generator=torch.Generator().manual_seed(1))
    rows[2] = 1 / 3
    bits, places = bits_of(8, 2, 4, 1), torch.tensor([5, 0, 3, 2])
    message = packed(rows, bits)
    arrived = unpacked(message, bits, 19)
    before = torch.arange(6 * 19.0).view(6, 19)
    for add in (False, True):
        out, expected = before.clone(), before.clone()
        dequantize(message, bits, packed_offsets(bits, 19), out, places, add=add)
        expected[places] = before[places] + arrived if add else arrived
        assert torch.equal(out, expected)
    total = arrived.clone()
    dequantize(message, bits, packed_offsets(bits, 19), total, None, add=True)
    assert torch.equal(total, 2 * arrived)


def test_many_rows_on_threads(threads):
    threads(3)
    count = 5000
    rows = torch.randn(count, 12, generator=torch.Generator().manual_seed(1))
    bits = bits_of(*(WIDTHS_IN_BITS[row % 4] for row in range(count)))
    order = torch.randperm(count, generator=torch.Generator().manual_seed(2))
    message = packed(rows, bits, positions=order, row_ids=order)
    arrived = unpacked(message, bits, 12, places=order)
    threads(1)
    assert torch.equal(message, packed(rows, bits, positions=order, row_ids=order))
    assert torch.equal(arrived, unpacked(message, bits, 12, places=order))
    threads(3)
    rows[order[[700, 4000]], 2] = math.nan
    with pytest.raises(DataError, match=rf"row {order[700]} \(id {order[700]}\) holds nan in column 2"):
        packed(rows, bits, positions=order, row_ids=order)


@pytest.mark.parametrize("value", [math.nan, -math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("column", [0, 16, 18])
def test_what_is_not_finite_is_refused(value, column):
    rows = torch.ones(3, 19)
    rows[1, column] = value
    with pytest.raises(DataError, match=rf"row 1 \(id 71\) holds -?(nan|inf) in column {column}: only finite"):
        packed(rows, bits_of(8, 8, 8), row_ids=torch.tensor([70, 71, 72]))
    rows[1] = value
    with pytest.raises(DataError, match=r"row 1 \(id 71\) holds -?(nan|inf) in column 0"):
        packed(rows, bits_of(2, 2), positions=torch.tensor([0, 1]), row_ids=torch.tensor([70, 71]))


@pytest.mark.parametrize("bits", WIDTHS_IN_BITS)
@pytest.mark.parametrize("row", [(-LARGEST, 0.0), (0.0, LARGEST), (-2e38, 2e38)], ids=str)
def test_rows_that_would_decode_to_infinity_are_refused(bits, row):
    rows = torch.tensor([row, (-1e38, 1e38)]).flip(0)
    assert there_and_back(rows[:1], bits_of(bits)).isfinite().all()
    with pytest.raises(DataError, match=r"row 1 \(id 1\) goes from .* in column 0 to .* in column 1: in \d bits"):
        packed(rows, bits_of(bits, bits))


def special_messages():
    """Rows of many sizes and kinds, in all bits, with refused ones at the end."""
    random = torch.Generator().manual_seed(5)
    found = []
    for width in (1, 3, 8, 13, 40, 64, 98, 602, 5124):
        # The interpreter is slow.
        count = 16 if width < 100 else 5
        rows = torch.randn(12, width, generator=random) * torch.logspace(-40, 37, 12)[:, None]
        rows[2], rows[3], rows[4], rows[5, ::2] = 0.1, -0.0, -LARGEST, 0
        bits = torch.tensor(WIDTHS_IN_BITS, dtype=torch.uint8)[torch.randperm(count, generator=random) % 4]
        positions = torch.randint(12, (count,), generator=random)
        row_ids = torch.randint(-(2**63), 2**63 - 1, (count,), generator=random)
        found.append((rows, positions, bits, row_ids, torch.randperm(count, generator=random)))
    for value in (math.nan, -math.inf, 3e38):
        rows = torch.tensor([[-1.0, 1.0], [-3e38, value], [value, 0.0]])
        found.append((rows, torch.tensor([0, 0, 1, 2]), bits_of(8, 1, 4, 2), torch.arange(4), torch.arange(4)))
    return found


IN_INTERPRETER = """
import sys, warnings
import torch
from windrow.comm.quantize import packed_offsets
from windrow.comm.quantize_triton import dequantize_rows, quantize_rows

warnings.simplefilter("error")
# Of rows that are refused, or constant: nothing is stored of them.
of_these = "overflow encountered|invalid value encountered in (add|multiply|cast)"
warnings.filterwarnings("ignore", of_these, RuntimeWarning)
found = []
for rows, positions, bits, row_ids, places in torch.load(sys.argv[1]):
    width, offsets = rows.shape[1], packed_offsets(bits, rows.shape[1])
    ranges = torch.zeros(len(bits))
    drawn = (7, positions, ranges, places), (2**64 - 3, None, None, None), (None, positions, ranges, places)
    for key, picked, measured, put in drawn:
        n = len(bits) if picked is not None else min(len(bits), len(rows))
        message = torch.zeros(int(offsets[n]), dtype=torch.uint8)
        asked = bits[:n], offsets[: n + 1]
        bad = quantize_rows(rows, picked, *asked, message, key=key, row_ids=row_ids[:n], ranges=measured)
        out = torch.ones(n, width)
        if bad < 0:
            dequantize_rows(message, *asked, out, put, add=False)
            out /= 2
            dequantize_rows(message, *asked, out, put, add=True)
        found.append((bad, message, ranges, out))
torch.save(found, sys.argv[2])
"""


def test_gpu_kernels_write_and_read_the_same_bytes_in_the_interpreter(tmp_path, run_with_triton):
    asked, answered = tmp_path / "asked", tmp_path / "answered"
    torch.save(special_messages(), asked)
    run_with_triton(IN_INTERPRETER, asked, answered, TRITON_INTERPRET="1")
    answers = iter(torch.load(answered))
    for rows, positions, bits, row_ids, places in special_messages():
        compare_with_cpu(next(answers), rows, bits, positions, row_ids, places, 7)
        n = min(len(bits), len(rows))
        compare_with_cpu(next(answers), rows[:n], bits[:n], None, row_ids[:n], None, 2**64 - 3)
        compare_with_cpu(next(answers), rows, bits, positions, row_ids, places, None)


def compare_with_cpu(answer, rows, bits, positions, row_ids, places, key):
    bad, message, ranges, out = answer
    expected_ranges = torch.zeros(len(bits))
    how = {"positions": positions, "row_ids": row_ids, "key": key}
    if bad >= 0:
        position = bad if positions is None else int(positions[bad])
        with pytest.raises(DataError, match=rf"row {position} \(id {row_ids[bad]}\)"):
            packed(rows, bits, **how)
        return
    expected = packed(rows, bits, **how, ranges=expected_ranges)
    assert torch.equal(message, expected)
    if positions is not None:
        assert torch.equal(ranges, expected_ranges)
    decoded = unpacked(expected, bits, rows.shape[1], places=places)
    halved = decoded / 2
    dequantize(expected, bits, packed_offsets(bits, rows.shape[1]), halved, places, add=True)
    assert torch.equal(out, halved)


COMPILED = """
from triton import compile
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from windrow.comm import quantize_triton

kinds = {"rows": "*fp32", "ranges": "*fp32", "key": "i64", "count": "i32"} | dict.fromkeys(("bits", "packed"), "*u8")
constants = dict.fromkeys(("picks", "measures", "adds", "aligned"), True) | {"nearest": False}
constants |= {"width": 256, "eights": 8, "at_once": 16}
for kernel, out in ((quantize_triton._quantize, "*u8"), (quantize_triton._dequantize, "*fp32")):
    signature = {name: kinds.get(name, "*i64") for name in kernel.arg_names} | {"out": out}
    chosen = {name: value for name, value in constants.items() if name in signature}
    source = ASTSource(fn=kernel, signature=signature | dict.fromkeys(chosen, "constexpr"), constexprs=chosen)
    code = compile(source, target=GPUTarget("cuda", 90, 32)).asm
    assert code["cubin"]
    print(code["ptx"])
"""


def test_gpu_kernels_compile_for_a_gpu_and_round_as_cpus_do(run_with_triton):
    code = run_with_triton(COMPILED)
    assert code.count("div.") == code.count("div.full") == 1  # of the guess
    assert ".ftz" not in code


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_gpus_and_cpus_write_and_read_the_same_bytes():
    for rows, positions, bits, row_ids, places in special_messages()[:-3]:
        expected = packed(rows, bits, positions=positions, row_ids=row_ids)
        on_gpu = [each.cuda() for each in (rows, positions, bits, row_ids, places)]
        offsets = packed_offsets(on_gpu[2], rows.shape[1])
        message = torch.zeros(len(expected), dtype=torch.uint8, device="cuda")
        quantize(on_gpu[0], on_gpu[1], on_gpu[2], offsets, message, key=KEY, row_ids=on_gpu[3])
        assert torch.equal(message.cpu(), expected)
        out = torch.zeros(len(bits), rows.shape[1], device="cuda")
        dequantize(message, on_gpu[2], offsets, out, on_gpu[4])
        assert torch.equal(out.cpu(), unpacked(expected, bits, rows.shape[1], places=places))

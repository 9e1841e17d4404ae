"""Every 16-bit number, and float32 numbers of every kind, against PyTorch's conversions, bit for bit."""

import numba
import numpy as np
import torch

from windrow.comm.rows_kernels import as_bfloat16, as_float16


@numba.njit
def from_all(bits, halves, brains):
    for i in range(bits.size):
        halves[i] = as_float16(bits[i], np.float32(0))
        brains[i] = as_bfloat16(bits[i], np.float32(0))


@numba.njit
def to_all(values, halves, brains):
    for i in range(values.size):
        halves[i] = as_float16(values[i], np.uint16(0))
        brains[i] = as_bfloat16(values[i], np.uint16(0))


def bits_of(values: torch.Tensor) -> np.ndarray:
    return values.view(torch.int16).numpy().view(np.uint16)


def test_every_short_number_is_widened_exactly():
    bits = np.arange(1 << 16).astype(np.uint16)
    halves, brains = np.zeros(1 << 16, np.float32), np.zeros(1 << 16, np.float32)
    from_all(bits, halves, brains)
    shorts = torch.from_numpy(bits.view(np.int16))
    for found, dtype in ((halves, torch.float16), (brains, torch.bfloat16)):
        assert np.array_equal(found, shorts.view(dtype).float().numpy(), equal_nan=True)


def test_numbers_of_every_kind_are_rounded_to_nearest_and_ties_to_even():
    random = np.random.default_rng(0).integers(0, 1 << 32, 100_000, dtype=np.uint32).view(np.float32)
    # What lies in the middle between two short numbers, and one step to each side.
    upper = np.arange(1 << 16, dtype=np.uint32) << 16
    ties = np.concatenate([upper + 0x8000, upper + 0x7FFF, upper + 0x8001]).view(np.float32)
    halves = np.arange(1 << 15).astype(np.uint16).view(np.float16).astype(np.float32)
    with np.errstate(invalid="ignore"):
        middles = (halves[:-1] + halves[1:]) / 2
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 65519.996, 65520, 1e-45, 3e38], np.float32)
    values = np.concatenate([random, ties, middles, special])
    halves, brains = np.zeros(values.size, np.uint16), np.zeros(values.size, np.uint16)
    to_all(values, halves, brains)
    number = ~np.isnan(values)
    expected = torch.from_numpy(values)
    assert np.array_equal(halves[number], bits_of(expected.half())[number])
    assert np.array_equal(brains[number], bits_of(expected.bfloat16())[number])
    assert torch.from_numpy(halves[~number].view(np.int16)).view(torch.float16).isnan().all()
    assert torch.from_numpy(brains[~number].view(np.int16)).view(torch.bfloat16).isnan().all()

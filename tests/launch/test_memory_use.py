"""windrow.launch.epoch_cost: a peak that rises with what is allocated, and never falls."""

import subprocess
import sys

import pytest
import torch

from windrow.launch.epoch_cost import peak_gpu_memory_bytes, peak_memory_bytes

CODE = """
from windrow.launch.epoch_cost import peak_memory_bytes
before = peak_memory_bytes()
block = b"x" * (400 << 20)
with_block = peak_memory_bytes()
del block
print(before, with_block, peak_memory_bytes())
"""


def test_the_peak_is_in_bytes_and_stays() -> None:
    # In a process of its own, whose peak nothing else has raised.
    said = subprocess.run(
        [sys.executable, "-c", CODE], capture_output=True, text=True, check=True, timeout=120
    )
    before, with_block, after = map(int, said.stdout.split())
    assert 1 << 20 < before < 4 << 30
    assert with_block >= 400 << 20
    assert after >= with_block
    assert peak_memory_bytes() > 1 << 20


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_nothing_is_needed_of_it() -> None:
    assert peak_gpu_memory_bytes() == 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_what_tensors_held_on_the_gpu() -> None:
    block = torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
    del block
    assert peak_gpu_memory_bytes() >= 1 << 20

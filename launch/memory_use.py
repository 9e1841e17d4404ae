"""How much memory this process has needed at most."""

import resource
import sys

import torch

__all__ = ["peak_gpu_memory_bytes", "peak_memory_bytes"]

RESIDENT_SET_UNIT_BYTES = 1 if sys.platform == "darwin" else 1024
"""Unit of ``ru_maxrss``: getrusage(2) has KiB on Linux, and bytes on macOS."""


def peak_memory_bytes() -> int:
    """The largest resident set of this process since it started, mapped files included, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * RESIDENT_SET_UNIT_BYTES


def peak_gpu_memory_bytes() -> int:
    """The most that tensors of this process have held on its current GPU since it started, in bytes; 0 without one."""
    # A process that never used its GPU must not wake it for this question.
    return torch.cuda.max_memory_allocated() if torch.cuda.is_initialized() else 0

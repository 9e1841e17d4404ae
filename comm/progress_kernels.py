"""A compiled wait that holds no lock of Python's: a thread that takes it for nothing costs the others milliseconds."""

from typing import Any

import numba
import numpy as np
import numpy.typing as npt
from numba import types

__all__ = ["IN_FLIGHT", "TESTS", "sleep_until_needed"]

TESTS, IN_FLIGHT = 0, 1
"""Places of signals: how often others have tested; whether something is in flight."""

POLLIN = 1
_poll: Any = types.ExternalFunction("poll", types.intc(types.intp, types.uintp, types.intc))


@numba.njit(nogil=True, cache=True)
def sleep_until_needed(signals: npt.NDArray[np.int64], end: int, interval_ms: int) -> bool:
    """Sleep until something is in flight and for so many milliseconds nobody else has tested: True.

    False as soon as there is something to read from the file descriptor `end`.
    """
    watched = np.array([end | POLLIN << 32])  # A struct pollfd, on a machine whose numbers begin with the lowest byte.
    while True:
        tests = signals[TESTS]
        if _poll(watched.ctypes.data, 1, interval_ms) > 0:
            return False
        if signals[IN_FLIGHT] and signals[TESTS] == tests:
            return True

"""Keep messages moving while a rank computes.

MPI moves a long message piece by piece, and only inside its own calls: without this, rows that were asked for before
a backward pass travel after it. A thread that looks after all messages in flight every few milliseconds costs a few
percent of a core while there are some and nothing while there are none, so no core needs to be spared for it.
"""

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

__all__ = ["BackgroundProgress"]

INTERVAL_S = 1e-3
"""Between the first two looks after something was posted."""

LONGEST_INTERVAL_S = 4e-3
"""Between two looks when nothing was posted for a while: each interval is half as long again. At 10 Gbit/s it is 5 MB,
about what the system's buffers keep of a connection, so the wire hardly falls idle in between. On 4 ranks that train on
2 cores the thread takes 2 % of a core of each."""


class BackgroundProgress:
    """A thread that drives whatever is in flight, while the ``with`` block runs.

    Args:
        drive: makes progress and says whether anything is left in flight; called from the thread.
        interval_s: seconds between the first two calls while there is.
    """

    def __init__(self, drive: Callable[[], bool], *, interval_s: float = INTERVAL_S) -> None:
        self._drive = drive
        self._interval_s = interval_s
        self._work = threading.Event()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)

    def notify(self) -> None:
        """Say that something was posted."""
        self._work.set()

    def __enter__(self) -> Self:
        """Start the thread."""
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the thread and wait for it."""
        self._ended.set()
        self._work.set()
        self._thread.join()

    def _run(self) -> None:
        interval_s = self._interval_s
        in_flight = False
        while not self._ended.is_set():
            # Cleared before looking: what is posted meanwhile sets it again.
            posted = self._work.wait(interval_s if in_flight else None)
            self._work.clear()
            if self._ended.is_set():
                return
            interval_s = self._interval_s if posted else min(1.5 * interval_s, LONGEST_INTERVAL_S)
            in_flight = self._drive()

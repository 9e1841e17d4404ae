"""Keep messages moving while a rank computes.

MPI moves a long message piece by piece, and only inside its own calls: without this, rows that were asked for before
a backward pass travel after it. A thread that looks after all messages in flight every millisecond costs a few
percent of a core while there are some and nothing while there are none, so no core needs to be spared for it.
"""

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

__all__ = ["BackgroundProgress"]

INTERVAL_S = 1e-3
"""Between two looks. At 10 Gbit/s a millisecond is 1.2 MB, which fits the buffers that the system keeps for a
connection, so the wire does not fall idle in between."""


class BackgroundProgress:
    """A thread that drives whatever is in flight, while the ``with`` block runs.

    Args:
        drive: makes progress and says whether anything is left in flight; called from the thread.
        interval_s: seconds between two calls while there is.
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
        while True:
            self._work.wait()
            if self._ended.is_set():
                return
            # Cleared before looking: what is posted meanwhile sets it again.
            self._work.clear()
            if self._drive():
                self._work.set()
                self._ended.wait(self._interval_s)

"""Work in named stages, each with a share that is done, shown as bars or lines."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from windrow.launch.progress import Progress

__all__ = ["StageProgress"]

SHARES = 1000
"""Units of a progress bar over a share from 0 to 1."""


class StageProgress:
    """Shows one stage after another.

    Args:
        progress: where to.
    """

    def __init__(self, progress: "Progress") -> None:
        self._progress = progress
        self._stage = ""
        self._shown = 0

    def report(self, stage: str, share: float) -> None:
        """Show that a share of a stage is done.

        Args:
            stage: its name; another one than before begins a new bar.
            share: 0 to 1; never less than before in one stage.
        """
        if stage != self._stage:
            self._progress.start(stage, SHARES)
            self._stage, self._shown = stage, 0
        units = int(share * SHARES)
        self._progress.advance(units - self._shown)
        self._shown = units

"""Memory that is used again at every step: large new memory takes the system as long to hand out as to fill."""

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["Buffers"]


class Buffers:
    """Flat float32 buffers that nobody uses at the moment.

    Args:
        device: of the buffers.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._free: list[Tensor] = []

    def take(self, shapes: Sequence[tuple[int, int]]) -> tuple[Tensor, list[Tensor]]:
        """Borrow memory for some matrices.

        Args:
            shapes: rows and columns of each.

        Returns:
            What to `give` back when the matrices are needed no more, and the matrices, whose values are undefined.
        """
        sizes = [rows * columns for rows, columns in shapes]
        needed = sum(sizes)
        fitting = [buffer for buffer in self._free if buffer.numel() >= needed]
        if fitting:
            chosen = min(fitting, key=Tensor.numel)
            self._free = [buffer for buffer in self._free if buffer is not chosen]
        else:
            # It takes the place of one that is too small, so that buffers do not pile up.
            self._free = sorted(self._free, key=Tensor.numel)[1:]
            # What is made in inference mode could not be written to outside of it, by the next training step.
            with torch.inference_mode(mode=False):
                chosen = torch.empty(needed, device=self._device)
        parts = chosen[:needed].split(sizes)
        return chosen, [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]

    def give(self, buffer: Tensor) -> None:
        """Give borrowed memory back."""
        self._free.append(buffer)

"""Copies to a GPU that run beside what it computes.

    stream of the caller   | compute i        | compute i + 1    |
    stream of the copies      | copy i + 1       | copy i + 2

A stream does its work in order, so copies need one of their own. What they made is used by another stream than the one
that its memory belongs to: that stream waits for the copies, and the allocator for that stream.
"""

import contextlib
from collections.abc import Iterable
from contextlib import AbstractContextManager

import torch
from torch import Tensor

__all__ = ["DeviceCopy"]


class DeviceCopy:
    """Where minibatches are copied to a device; on a CPU nothing needs to be done.

    Args:
        device: where minibatches are computed. What is on it already may be read by the copies.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)
            self._stream.wait_stream(torch.cuda.current_stream(device))

    @property
    def overlaps(self) -> bool:
        """Whether copies run beside computing, so that it pays to begin them a minibatch ahead."""
        return self._stream is not None

    def queue(self) -> AbstractContextManager[object]:
        """While the ``with`` block runs, what this thread queues on the device goes to the stream of the copies."""
        return contextlib.nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def mark(self) -> torch.cuda.Event | None:
        """A moment: when all copies that were queued until now are done."""
        return None if self._stream is None else self._stream.record_event()

    def hand_over(self, done: torch.cuda.Event | None, tensors: Iterable[Tensor]) -> None:
        """Let the caller's stream use what the copies made; the caller itself waits for nothing.

        Args:
            done: from `mark`, after the copies.
            tensors: what they made; those on a CPU do not matter.
        """
        if self._stream is None or done is None:
            return
        current = torch.cuda.current_stream(self._stream.device)
        current.wait_event(done)
        for tensor in tensors:
            if tensor.is_cuda:
                tensor.record_stream(current)

"""Copies between where a tensor lives and where its backend can send it from."""

import torch
from torch import Tensor

__all__ = ["as_bytes", "from_transport", "to_transport"]


def to_transport(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on the device it travels from.

    Args:
        tensor: any contiguous tensor.
        device: from `World.transport_device`.

    Returns:
        `tensor` itself where it already is there; else a copy, in page-locked memory when it comes from a GPU
        (twice the copy bandwidth, and the driver need not stage it again). The copy is finished on return.
    """
    if tensor.device == device:
        return tensor
    if tensor.is_cuda and device.type == "cpu":
        pinned = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        return pinned.copy_(tensor)
    return tensor.to(device)


def from_transport(transport: Tensor, wanted: Tensor) -> None:
    """Copy what arrived into the tensor that was to receive it; nothing to do where they are the same memory."""
    if transport.data_ptr() != wanted.data_ptr() or transport.device != wanted.device:
        wanted.copy_(transport)


def as_bytes(tensor: Tensor) -> Tensor:
    """The memory of a contiguous tensor as a vector of uint8, whatever its dtype; nothing is copied."""
    # A tensor of no or one element may have any stride, 0 too, which `view` would refuse.
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)

"""Copies between devices; on the CPU there must be none."""

import pytest
import torch

from windrow.comm.transfer import as_bytes, from_transport, to_transport

CPU = torch.device("cpu")


def test_a_tensor_that_is_there_already_is_not_copied():
    tensor = torch.arange(4)
    assert to_transport(tensor, CPU) is tensor
    from_transport(tensor, tensor)
    assert tensor.tolist() == [0, 1, 2, 3]


def test_what_arrived_elsewhere_is_copied_to_where_it_is_wanted():
    wanted = torch.zeros(4, dtype=torch.int64)
    from_transport(torch.arange(4), wanted)
    assert wanted.tolist() == [0, 1, 2, 3]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_tensors_go_through_page_locked_memory():
    tensor = torch.arange(4, device="cuda")
    transport = to_transport(tensor, CPU)
    assert transport.is_pinned()
    assert transport.tolist() == [0, 1, 2, 3]
    wanted = torch.zeros_like(tensor)
    from_transport(transport, wanted)
    assert torch.equal(wanted, tensor)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6).reshape(2, 3),
        torch.ones(1).expand(1),
        torch.empty(0, 4),
        torch.tensor(3.0),
        torch.empty(5)[:0],
    ],
    ids=["matrix", "expanded", "no rows", "scalar", "empty slice"],
)
def test_bytes_are_the_tensors_own_memory(tensor):
    as_uint8 = as_bytes(tensor)
    assert as_uint8.shape == (tensor.nbytes,)
    assert as_uint8.numpy().tobytes() == tensor.numpy().tobytes()
    assert tensor.numel() == 0 or as_uint8.data_ptr() == tensor.data_ptr()

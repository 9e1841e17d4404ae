"""windrow.recsys.tables.shard_files: the library reads what is written here."""

import hashlib
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file

from windrow.recsys.tables.shard_files import DTYPE_NAMES, write_safetensors

shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple)


@given(
    entries=st.dictionaries(
        st.text(min_size=1, max_size=10).filter(lambda name: name != "__metadata__"),
        st.tuples(st.sampled_from(list(DTYPE_NAMES)), shapes),
        max_size=5,
    ),
    metadata=st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3),
)
def test_the_library_reads_it_back(tmp_path_factory: pytest.TempPathFactory, entries, metadata) -> None:
    path = tmp_path_factory.mktemp("written") / "f.safetensors"
    tensors = {
        name: torch.arange(torch.Size(shape).numel()).reshape(shape).to(dtype)
        for name, (dtype, shape) in entries.items()
    }
    checksum = write_safetensors(
        path,
        entries,
        lambda name: tensors[name].split(1) if tensors[name].ndim else [tensors[name]],
        metadata=metadata,
    )
    assert checksum == hashlib.sha256(path.read_bytes()).hexdigest()
    found = load_file(path)
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)
    with safe_open(path, framework="pt") as file:
        assert (file.metadata() or {}) == metadata


def test_a_piece_that_is_not_contiguous_or_needs_a_gradient(tmp_path: Path) -> None:
    tensor = torch.arange(12.0).reshape(3, 4).T.requires_grad_()
    write_safetensors(tmp_path / "f", {"t": (torch.float32, (4, 3))}, lambda _: [tensor], metadata={})
    assert torch.equal(load_file(tmp_path / "f")["t"], tensor.detach())


def test_missing_rows_leave_no_file(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="t has 8 bytes instead of 16"):
        write_safetensors(
            tmp_path / "f", {"t": (torch.float32, (4,))}, lambda _: [torch.zeros(2)], metadata={}
        )
    assert not list(tmp_path.iterdir())

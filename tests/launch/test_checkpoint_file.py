"""windrow.launch.checkpoint: what is written comes back, what is damaged is refused."""

import contextlib
import errno
import os
import resource
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from windrow.comm.errors import StoreError
from windrow.launch.checkpoint import (
    CheckpointHeader,
    read_checkpoint,
    read_header,
    write_checkpoint,
)

HEADER = CheckpointHeader(
    recipe={"seed": 0, "model": {"hidden": 8, "dropout": 0.1}},
    data_fingerprint="f" * 64,
    epoch=3,
    step=7,
    world_size=2,
    table_files={"rank-00000.safetensors": "e" * 64},
)
STATE = {
    "model": OrderedDict(weight=torch.arange(6.0).reshape(2, 3), half=torch.ones(2, dtype=torch.bfloat16)),
    "optimizer": {"state": {0: {"step": torch.tensor(3.0)}}, "param_groups": [{"lr": 0.1, "params": [0]}]},
    "best": float("-inf"),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "c.ckpt"
    write_checkpoint(path, HEADER, STATE)
    return path


def test_round_trip(path: Path) -> None:
    header, state = read_checkpoint(path)
    assert header == HEADER == read_header(path)
    assert header.position == (3, 7)
    assert state["best"] == float("-inf")
    assert torch.equal(state["model"]["weight"], STATE["model"]["weight"])  # type: ignore[index]
    assert state["model"]["half"].dtype == torch.bfloat16
    assert state["optimizer"]["param_groups"] == [{"lr": 0.1, "params": [0]}]
    assert [entry.name for entry in path.parent.iterdir()] == ["c.ckpt"]


def test_the_header_is_one_readable_line(path: Path) -> None:
    assert b'"epoch": 3' in path.read_bytes().split(b"\n")[1]


@settings(max_examples=60)
@given(position=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_any_flipped_bit_is_noticed(
    tmp_path_factory: pytest.TempPathFactory, position: float, bit: int
) -> None:
    path = tmp_path_factory.mktemp("flip") / "c.ckpt"
    write_checkpoint(path, HEADER, STATE)
    contents = bytearray(path.read_bytes())
    contents[int(position * len(contents))] ^= 1 << bit
    path.write_bytes(contents)
    # The one exception: a bit of the blanks between two items of JSON.
    with contextlib.suppress(StoreError):
        header, state = read_checkpoint(path)
        assert header == HEADER
        assert torch.equal(state["model"]["weight"], STATE["model"]["weight"])  # type: ignore[index]


@pytest.mark.parametrize("share", [0.0, 0.01, 0.2, 0.5, 0.9, 0.999])
def test_a_truncated_file_is_refused(path: Path, share: float) -> None:
    contents = path.read_bytes()
    path.write_bytes(contents[: int(share * len(contents))])
    with pytest.raises(StoreError, match=r"damaged.*Delete it"):
        read_checkpoint(path)


def test_another_version_is_refused_with_its_number(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b'"format_version": 2', b'"format_version": 1'))
    with pytest.raises(StoreError, match="format 1, but this version of windrow reads format 2"):
        read_header(path)


def test_an_absent_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot be read"):
        read_checkpoint(tmp_path / "absent")


def test_a_real_size_limit_leaves_the_last_good_one(path: Path) -> None:
    before = path.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        with pytest.raises(StoreError) as caught:
            write_checkpoint(path, HEADER, {"big": torch.zeros(100_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    message = str(caught.value)
    assert "no space left" in message
    assert str(path.parent) in message
    assert " bytes)" in message
    assert "--resume" in message
    assert path.read_bytes() == before
    assert [entry.name for entry in path.parent.iterdir()] == ["c.ckpt"]


@pytest.mark.parametrize(
    ("number", "words"), [(errno.ENOSPC, "no space left"), (errno.EACCES, "make the folder writable")]
)
def test_errors_of_the_disk_are_worded(
    path: Path, monkeypatch: pytest.MonkeyPatch, number: int, words: str
) -> None:
    def fail(_: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StoreError, match=words):
        write_checkpoint(path, HEADER, STATE)
    monkeypatch.undo()
    assert read_header(path) == HEADER


def test_only_plain_values_load(tmp_path: Path) -> None:
    path = tmp_path / "c.ckpt"
    write_checkpoint(path, HEADER, {"code": CheckpointHeader})
    with pytest.raises(Exception, match=r"[Ww]eights"):
        read_checkpoint(path)

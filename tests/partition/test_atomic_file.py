"""windrow.partition.atomic_writes: all or nothing."""

import os
from pathlib import Path

import pytest

from windrow.partition.atomic_writes import open_atomically, write_atomically


def test_contents_are_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "f"
    write_atomically(path, b"one ", memoryview(b"two"))
    assert path.read_bytes() == b"one two"
    write_atomically(path)
    assert path.read_bytes() == b""
    assert [entry.name for entry in tmp_path.iterdir()] == ["f"]


@pytest.mark.parametrize(("place", "step"), [(os, "fsync"), (Path, "replace")])
def test_a_failure_leaves_the_old_file_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: object, step: str
) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"old")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(place, step, fail)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["f"]


def test_an_error_in_the_block_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"old")

    def write_half() -> None:
        with open_atomically(path) as file:
            file.write(b"ne")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_half()
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["f"]

"""windrow.recsys.tables.shard_files: what a rank writes, and how damage is found."""

import hashlib
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from windrow.comm.errors import StoreError
from windrow.recsys.tables.shard_files import check_shard_files, parse_key, shard_key, write_shard_file
from windrow.recsys.tables.table import LocalTable

MEMBER = LocalTable(name="item/id", rows=(5, 8), columns=(4, 8))
EMPTY = LocalTable(name="user", rows=(3, 3), columns=(0, 8))


def test_contents_stand_under_their_rectangle(tmp_path: Path) -> None:
    path = tmp_path / "rank-00000.safetensors"
    contents = {
        "weight": torch.arange(12.0).reshape(3, 4).half(),
        "sum_of_squares": torch.arange(3.0),
        "step": torch.tensor(7),
    }
    checksum = write_shard_file(path, [(MEMBER, contents), (EMPTY, {"weight": torch.zeros(0, 8)})])
    found = load_file(path)
    assert set(found) == {f"item/id/5-8/4-8/{what}" for what in contents}
    for what, tensor in contents.items():
        assert torch.equal(found[shard_key(MEMBER, what)], tensor)
    assert checksum == hashlib.sha256(path.read_bytes()).hexdigest()


@given(
    name=st.text(min_size=1),
    bounds=st.tuples(*[st.integers(0, 2**40)] * 4),
    what=st.sampled_from(["weight", "sum_of_squares"]),
)
def test_keys_are_read_back(name: str, bounds: tuple[int, int, int, int], what: str) -> None:
    member = LocalTable(name=name, rows=bounds[:2], columns=bounds[2:])
    assert parse_key(shard_key(member, what)) == (member, what)
    assert parse_key("weight") is None


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ([(MEMBER, {"weight": torch.zeros(4, 4)})], r"weight of .* has shape \[4, 4\]"),
        ([(MEMBER, {"weight": torch.zeros(3, 4)})] * 2, "is there twice"),
    ],
)
def test_wrong_shapes_and_doubles_are_bugs(tmp_path: Path, members, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        write_shard_file(tmp_path / "f", members)
    assert not list(tmp_path.iterdir())


def test_damage_is_found_and_named(tmp_path: Path) -> None:
    members = [(MEMBER, {"weight": torch.zeros(3, 4)})]
    checksums = {name: write_shard_file(tmp_path / name, members) for name in ("a", "b")}
    check_shard_files(tmp_path, checksums)
    contents = bytearray((tmp_path / "b").read_bytes())
    contents[-1] ^= 1
    (tmp_path / "b").write_bytes(contents)
    check_shard_files(tmp_path, {"a": checksums["a"]})
    with pytest.raises(StoreError, match=r"b is damaged: its checksum is .* instead of"):
        check_shard_files(tmp_path, checksums)
    (tmp_path / "b").unlink()
    with pytest.raises(StoreError, match=r"b cannot be read: No such file"):
        check_shard_files(tmp_path, checksums)

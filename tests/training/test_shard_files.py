"""What ranks write, and what is read back whatever plan wrote it; damage is found."""

import hashlib
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file

from windrow.comm.errors import StoreError
from windrow.training.shard_files import (
    LocalTable,
    ShardReader,
    StateTensor,
    check_shard_files,
    write_safetensors,
    write_shard_file,
)

MEMBER = LocalTable(name="item/id", rows=(5, 8), columns=(4, 8))
EMPTY = LocalTable(name="user", rows=(3, 3), columns=(0, 8))


def tensors_of(piece: LocalTable, contents: dict[str, torch.Tensor]) -> list[StateTensor]:
    """The contents of a shard of a dense table."""
    return [
        StateTensor(piece=piece, name=name, tensor=tensor, axes=("rows", "columns")[: tensor.ndim], replicated=False)
        for name, tensor in contents.items()
    ]


def test_contents_stand_under_their_slices(tmp_path: Path) -> None:
    path = tmp_path / "rank-00000.safetensors"
    contents = {
        "weight": torch.arange(12.0).reshape(3, 4).half(),
        "sum_of_squares": torch.arange(3.0),
        "step": torch.tensor(7),
    }
    checksum = write_shard_file(
        path, [*tensors_of(MEMBER, contents), *tensors_of(EMPTY, {"weight": torch.zeros(0, 8)})]
    )
    found = load_file(path)
    assert set(found) == {f"item/id/5-8/4-8/{what}" for what in contents}
    for what, tensor in contents.items():
        assert torch.equal(found[f"item/id/5-8/4-8/{what}"], tensor)
    assert checksum == hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("members", "message"),
    [
        (tensors_of(MEMBER, {"weight": torch.zeros(4, 4)}), r"weight of .* has shape \[4, 4\]"),
        (tensors_of(MEMBER, {"weight": torch.zeros(3, 4)}) * 2, "is there twice"),
    ],
)
def test_wrong_shapes_and_doubles_are_bugs(tmp_path: Path, members, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        write_shard_file(tmp_path / "f", members)
    assert not list(tmp_path.iterdir())


def test_damage_is_found_and_named(tmp_path: Path) -> None:
    members = tensors_of(MEMBER, {"weight": torch.zeros(3, 4)})
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


def pieces_of(tensor: torch.Tensor) -> Iterable[torch.Tensor]:
    """Along the first axis, not contiguous where there are columns, with a gradient where there can be one."""
    if tensor.is_floating_point():
        tensor = tensor.clone().requires_grad_()
    if tensor.ndim > 1:
        tensor = tensor.transpose(0, 1).contiguous().transpose(0, 1)
    return tensor.split(2) if tensor.ndim else [tensor]


DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8]
shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple)


@settings(max_examples=30)
@given(
    entries=st.dictionaries(
        st.text(min_size=1, max_size=10).filter(lambda name: name != "__metadata__"),
        st.tuples(st.sampled_from(DTYPES), shapes),
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
    checksum = write_safetensors(path, entries, lambda name: pieces_of(tensors[name]), metadata=metadata)
    assert checksum == hashlib.sha256(path.read_bytes()).hexdigest()
    found = load_file(path)
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)
    with safe_open(path, framework="pt") as file:
        assert (file.metadata() or {}) == metadata


def test_missing_rows_leave_no_file(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="t has 8 bytes instead of 16"):
        write_safetensors(tmp_path / "f", {"t": (torch.float32, (4,))}, lambda _: [torch.zeros(2)], metadata={})
    assert not list(tmp_path.iterdir())


def member(rows: tuple[int, int], columns: tuple[int, int], name: str = "item") -> LocalTable:
    return LocalTable(name=name, rows=rows, columns=columns)


def cut(data: st.DataObject, length: int) -> list[tuple[int, int]]:
    inner = data.draw(st.sets(st.integers(1, max(length - 1, 1)), max_size=4))
    return list(pairwise(sorted({0, length, *(bound for bound in inner if bound < length)})))


def some_range(data: st.DataObject, length: int) -> tuple[int, int]:
    start = data.draw(st.integers(0, length))
    return start, data.draw(st.integers(start, length))


@settings(max_examples=30)
@given(data=st.data())
def test_any_rectangle_equals_a_slice_of_the_whole(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("checkpoint")
    rows, dim, ranks = (data.draw(st.integers(1, 40)), data.draw(st.integers(1, 20)), data.draw(st.integers(1, 4)))
    dtype = data.draw(st.sampled_from([torch.float32, torch.float16]))
    # Powers and roots of integers: no two cells are equal, and none is short in binary.
    numbers = torch.arange(1.0, rows * dim + 1).reshape(rows, dim)
    whole = {"weight": numbers.sqrt().to(dtype), "first_moment": numbers.pow(0.3)}
    by_row = torch.arange(1.0, rows + 1).pow(1 / 3)
    ids = torch.tensor(data.draw(st.permutations(range(rows))))
    held: list[list] = [[] for _ in range(ranks)]
    for bounds in cut(data, rows):
        for columns in cut(data, dim):
            contents = {what: tensor[slice(*bounds), slice(*columns)] for what, tensor in whole.items()}
            contents |= {"sum_of_squares": by_row[slice(*bounds)], "step": torch.tensor(12.0)}
            contents["row_ids"] = ids[slice(*bounds)]
            held[data.draw(st.integers(0, ranks - 1))] += tensors_of(member(bounds, columns), contents)
    for rank, members in enumerate(held):
        write_shard_file(folder / str(rank), members)
    with ShardReader(folder, map(str, range(ranks))) as reader:
        assert reader.tables == ["item"]
        assert reader.shape("item") == (rows, dim)
        assert reader.dtype("item") == dtype
        assert set(reader.contents("item")) == {*whole, "sum_of_squares", "row_ids", "step"}
        some = torch.tensor(data.draw(st.permutations(range(rows))))[: data.draw(st.integers(0, rows))]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("windrow.training.shard_files._ROWS_AT_ONCE", 7)
            for what, tensor in {**whole, "sum_of_squares": by_row}.items():
                found = reader.read_ids("item", some, (0, dim), what)
                assert torch.equal(found, tensor[ids.argsort()[some]])
            with pytest.raises(StoreError, match="1 of 1 rows of table 'item' are not there"):
                reader.read_ids("item", torch.tensor([rows]), (0, dim), "weight")
        for _ in range(3):
            bounds, columns = some_range(data, rows), some_range(data, dim)
            for what, tensor in whole.items():
                found = reader.read("item", bounds, columns, what)
                assert found.dtype == tensor.dtype
                assert torch.equal(found, tensor[slice(*bounds), slice(*columns)])
            if columns[0] < columns[1]:
                found = reader.read("item", bounds, columns, "sum_of_squares")
                assert found.dtype == torch.float32
                assert torch.equal(found, by_row[slice(*bounds)])
            assert reader.read("item", bounds, columns, "step") == 12.0


def test_state_of_rows_is_averaged_by_width(tmp_path: Path) -> None:
    widths = {(0, 4): 1.0, (4, 12): 4.0, (12, 16): 9.0}
    state = [
        found
        for columns, value in widths.items()
        for found in tensors_of(
            member((0, 2), columns), {"weight": torch.zeros(2, columns[1] - columns[0]), "sum": torch.full((2,), value)}
        )
    ]
    write_shard_file(tmp_path / "f", state)
    with ShardReader(tmp_path, ["f"]) as reader:
        assert reader.read("item", (0, 2), (0, 16), "sum").tolist() == [(4 * 1 + 8 * 4 + 4 * 9) / 16] * 2
        assert reader.read("item", (1, 2), (0, 8), "sum").tolist() == [2.5]
        assert reader.read("item", (0, 1), (4, 8), "sum").tolist() == [4.0]


def write(folder: Path, **files: list[tuple[LocalTable, dict[str, torch.Tensor]]]) -> list[str]:
    for name, members in files.items():
        write_shard_file(folder / name, [found for one in members for found in tensors_of(*one)])
    return list(files)


def piece(rows: tuple[int, int], columns: tuple[int, int] = (0, 4), **state: torch.Tensor):
    return member(rows, columns), {"weight": torch.zeros(rows[1] - rows[0], columns[1] - columns[0]), **state}


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    names = write(tmp_path, a=[piece((0, 2), step=torch.tensor(1))], b=[piece((3, 5), step=torch.tensor(2))])
    with ShardReader(tmp_path, names) as reader:
        for rows, columns in (((1, 4), (0, 4)), ((0, 2), (0, 5)), ((4, 6), (0, 4))):
            with pytest.raises(StoreError, match=r"is not all there\. The files hold table 'item', rows \[0, 2\]"):
                reader.read("item", rows, columns)
        with pytest.raises(StoreError, match="has no table 'user': it holds item"):
            reader.read("user", (0, 1), (0, 4))
        with pytest.raises(StoreError, match="has no 'sum_of_squares', only step, weight: was another optimiser"):
            reader.read("item", (0, 1), (0, 4), "sum_of_squares")


def test_numbers_of_pieces_must_agree(tmp_path: Path) -> None:
    names = write(tmp_path, a=[piece((0, 2), step=torch.tensor(1))], b=[piece((2, 5), step=torch.tensor(2))])
    with ShardReader(tmp_path, names) as reader:
        assert reader.read("item", (2, 3), (0, 4), "step") == 2
        with pytest.raises(StoreError, match=r"step is 2 in .*rows \[2, 5\].* and 1 in .*rows \[0, 2\]"):
            reader.read("item", (0, 5), (0, 4), "step")


@pytest.mark.parametrize("other", [piece((0, 2)), piece((1, 3), (0, 2)), piece((1, 2))])
def test_no_row_is_there_twice(tmp_path: Path, other) -> None:
    """The last one has as many cells as are missing: counting cells does not find it."""
    names = write(tmp_path, a=[piece((0, 2)), piece((3, 5))], b=[other])
    (top, bottom), (left, right) = other[0].rows, other[0].columns
    message = (
        rf"table 'item', rows \[0, 2\], columns \[0, 4\] in a and table 'item', rows \[{top}, {bottom}\], "
        rf"columns \[{left}, {right}\] in b overlap: the files were not written together"
    )
    with ShardReader(tmp_path, names) as reader:
        with pytest.raises(StoreError, match=message):
            reader.read("item", (0, 3), (0, 4))
        assert reader.read("item", (3, 5), (0, 4)).shape == (2, 4)


def test_what_several_tables_share_is_read_whole(tmp_path: Path) -> None:
    """As a compressed table stores it: an array that is no shard of anything."""
    array = torch.arange(20.0)
    shared = StateTensor(
        piece=LocalTable(name="robe", rows=(0, 1), columns=(0, 1)), name="array", tensor=array, axes=(), replicated=True
    )
    write_shard_file(tmp_path / "f", [shared, *tensors_of(MEMBER, {"weight": torch.zeros(3, 4)})])
    with ShardReader(tmp_path, ["f"]) as reader:
        assert reader.contents("robe") == ["array"]
        assert torch.equal(reader.read("robe", (0, 1), (0, 1), "array"), array)


def test_files_of_another_kind_are_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no tensors")
    layout = {"x": (torch.float32, (1,))}
    for name, metadata in {
        "model": {"format": "pt"},
        "newer": {"format": "windrow.tables", "format_version": "2"},
        "odd": {"format": "windrow.tables", "format_version": "1"},
    }.items():
        write_safetensors(tmp_path / name, layout, lambda _: [torch.zeros(1)], metadata=metadata)
    whole = tmp_path / write(tmp_path, whole=[piece((0, 2))])[0]
    (tmp_path / "short").write_bytes(whole.read_bytes()[:-1])
    for name, message in {
        "missing": "missing cannot be read",
        "text": "text cannot be read",
        "short": "short cannot be read",
        "model": "model holds {'format': 'pt', .* is read",
        "newer": "newer holds .*'format_version': '2'.* is read: use the windrow that wrote it",
        "odd": "odd holds .* use the windrow that wrote it",
    }.items():
        with pytest.raises(StoreError, match=message):
            ShardReader(tmp_path, ["whole", name])

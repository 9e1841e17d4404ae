"""windrow.recsys.log.raw_blocks: whatever the blocks and ranks, the lines are the file's."""

import gzip
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.comm.errors import DataError
from windrow.recsys.log.raw_blocks import text_blocks

LINES = st.lists(st.binary(max_size=9).map(lambda line: line.replace(b"\n", b"")), min_size=1, max_size=20)


@given(
    files=st.lists(LINES, min_size=1, max_size=3),
    block_bytes=st.integers(1, 40),
    size=st.integers(1, 4),
    compressed=st.booleans(),
    ended=st.booleans(),
)
def test_the_lines_of_all_ranks_are_those_of_the_files(
    files: list[list[bytes]], block_bytes: int, size: int, compressed: bool, ended: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        paths, expected = [], set()
        for number, lines in enumerate(files):
            text = b"header\r\n" + b"\n".join(lines) + (b"\n" if ended or not lines[-1] else b"")
            path = Path(folder) / f"{number}.csv{'.gz' if compressed else ''}"
            path.write_bytes(gzip.compress(text) if compressed else text)
            paths.append(path)
            expected |= {(path, number, line) for number, line in enumerate(lines, start=2)}
        found = []
        for rank in range(size):
            for header, block in text_blocks(
                paths, rank=rank, size=size, block_bytes=block_bytes, has_header=True
            ):
                assert header == b"header"
                assert block.data.endswith(b"\n")
                lines = block.data.split(b"\n")[:-1]
                assert len(lines) == block.num_lines
                found += [
                    (block.file, number, line) for number, line in enumerate(lines, start=block.first_line)
                ]
        assert len(found) == len(expected)
        assert set(found) == expected


def test_ranks_take_blocks_in_turn(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"1\n2\n3\n4\n5\n")
    taken = [
        [block.first_line for _, block in text_blocks([tmp_path / "a.txt"], rank=rank, size=2, block_bytes=2)]
        for rank in range(2)
    ]
    assert taken == [[1, 3, 5], [2, 4]]
    shares = [block.file_share for _, block in text_blocks([tmp_path / "a.txt"])]
    assert shares == [1.0]


def test_damaged_and_empty_files_are_named(tmp_path: Path) -> None:
    import random

    whole = gzip.compress(b"".join(b"%d\n" % number for number in range(5000)))
    (tmp_path / "cut.gz").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "noise.gz").write_bytes(random.Random(0).randbytes(100))
    (tmp_path / "bits.gz").write_bytes(whole[:300] + b"\xff\xff\xff" + whole[303:])
    for name in ("cut.gz", "noise.gz", "bits.gz"):
        with pytest.raises(DataError, match=rf"{name}: the compressed stream is damaged or cut short.*fetch"):
            list(text_blocks([tmp_path / name]))
    # The last one is there, and its first page is not: reading it is an error of the system's.
    for path in (tmp_path / "absent.csv", tmp_path, Path("/proc/self/mem")):
        with pytest.raises(DataError, match=rf"{path}, line 1: cannot be read \(.*correct the path or"):
            list(text_blocks([path]))
    (tmp_path / "header.csv").write_bytes(b"a,b\n")
    with pytest.raises(DataError, match=r"header\.csv has no lines of data"):
        list(text_blocks([tmp_path / "header.csv"], has_header=True))

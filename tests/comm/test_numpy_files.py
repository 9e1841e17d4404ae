"""Arrays of npz files, and what is said of files that have none."""

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from windrow.comm.errors import DataError
from windrow.comm.numpy_files import integer_row, load_arrays, map_array

EDGES = np.array([[0, 1], [1, 2]])


def test_all_arrays_are_loaded(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "graph.npz", edges=EDGES, ids=np.arange(3, dtype=np.uint16))
    arrays = load_arrays(tmp_path / "graph.npz")
    assert arrays["edges"].tolist() == EDGES.tolist()
    ids = integer_row(tmp_path / "graph.npz", arrays, "ids")
    assert (ids.dtype, ids.tolist()) == (np.int64, [0, 1, 2])


@pytest.mark.parametrize("cut", [0, 3, 40, 200])
def test_a_truncated_file_is_refused(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "graph.npz"
    np.savez(path, edges=EDGES)
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(DataError, match=r"no readable npz file .*; fetch or write it again"):
        load_arrays(path)


def test_damaged_bytes_objects_and_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "graph.npz"
    np.savez(path, edges=np.zeros((1000, 2), dtype=np.int64))
    content = bytearray(path.read_bytes())
    content[5000] ^= 255
    path.write_bytes(content)
    with pytest.raises(DataError, match="array 'edges' is damaged"):
        load_arrays(path)
    np.savez(path, edges=np.array([{}], dtype=object))
    with pytest.raises(DataError, match=r"'edges' holds Python objects.*convert it with"):
        load_arrays(path)
    np.save(tmp_path / "one.npy", EDGES)
    with pytest.raises(DataError, match="a single array, not an npz file"):
        load_arrays(tmp_path / "one.npy")
    with pytest.raises(DataError, match=r"none\.npz: there is no such file; correct the path"):
        load_arrays(tmp_path / "none.npz")
    with pytest.raises(DataError, match=r"cannot be read \(Is a directory\)"):
        load_arrays(tmp_path)


def test_a_row_of_whole_numbers_is_nothing_else() -> None:
    path, arrays = Path("x.npz"), {"edges": EDGES, "weights": np.zeros(3)}
    with pytest.raises(DataError, match=r"no array 'ids'; the arrays are \['edges', 'weights'\]"):
        integer_row(path, arrays, "ids")
    with pytest.raises(DataError, match=r"'edges' has type int64 and shape \(2, 2\); need 1-D integers"):
        integer_row(path, arrays, "edges")
    with pytest.raises(DataError, match="'weights' has type float64"):
        integer_row(path, arrays, "weights")


def test_ranks_of_one_process_map_arrays_at_once(tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", EDGES)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            found = list(threads.map(map_array, [tmp_path / "rows.npy"] * 2000))
    finally:
        sys.setswitchinterval(interval)
    assert all(array.tolist() == EDGES.tolist() and not array.flags.writeable for array in found)


@pytest.mark.parametrize("cut", [0, 3, 40, 130])
def test_a_truncated_array_is_a_value_error(tmp_path: Path, cut: int) -> None:
    np.save(tmp_path / "rows.npy", EDGES)
    (tmp_path / "rows.npy").write_bytes((tmp_path / "rows.npy").read_bytes()[:cut])
    with pytest.raises(ValueError, match=r".+"):
        map_array(tmp_path / "rows.npy")

"""windrow.recsys.tables.import_export: each rank reads its rectangle, and bad rows are named."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from windrow.comm.errors import DataError
from windrow.recsys.tables.import_export import load_pretrained

ROWS = torch.arange(60.0).reshape(10, 6).sqrt()
SHAPE = (10, 6)


def write(path: Path, rows: torch.Tensor = ROWS, *, name: str = "item", **others: torch.Tensor) -> Path:
    if path.suffix == ".npy":
        np.save(path, rows.numpy())
    else:
        save_file({name: rows, **others}, path)
    return path


@pytest.mark.parametrize("suffix", [".npy", ".safetensors"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_a_rectangle_is_read(tmp_path: Path, suffix: str, dtype: torch.dtype) -> None:
    path = write(tmp_path / f"rows{suffix}", ROWS.to(dtype))
    found = load_pretrained(path, "item", (2, 7), (4, 6), shape=SHAPE)
    assert found.dtype == torch.float32
    assert found.is_contiguous()
    assert torch.equal(found, ROWS.to(dtype).float()[2:7, 4:6])
    found += 1
    assert torch.equal(load_pretrained(path, "item", (0, 10), (0, 6), shape=SHAPE), ROWS.to(dtype).float())
    assert load_pretrained(path, "item", (3, 3), (0, 6), shape=SHAPE).shape == (0, 6)


@given(
    row=st.integers(0, 9),
    column=st.integers(0, 5),
    value=st.sampled_from([float("nan"), float("inf"), 1e300]),
)
def test_a_number_that_is_not_finite_is_found_by_whom_it_concerns(
    tmp_path_factory: pytest.TempPathFactory, row: int, column: int, value: float
) -> None:
    rows = ROWS.double()
    rows[row, column] = value
    for suffix in (".npy", ".safetensors"):
        path = write(tmp_path_factory.mktemp("rows") / f"rows{suffix}", rows)
        for bounds in ((0, 5), (5, 10)):
            if bounds[0] <= row < bounds[1]:
                with pytest.raises(
                    DataError, match=rf"row {row}, column {column} .*'item' is (nan|inf), not a finite"
                ):
                    load_pretrained(path, "item", bounds, (0, 6), shape=SHAPE)
            else:
                load_pretrained(path, "item", bounds, (0, 6), shape=SHAPE)


def test_the_tensor_is_found_by_name_or_alone(tmp_path: Path) -> None:
    alone = write(tmp_path / "alone.safetensors", name="weight")
    assert len(load_pretrained(alone, "item", (0, 10), (0, 6), shape=SHAPE)) == 10
    several = write(tmp_path / "several.safetensors", items=torch.zeros(1, 1))
    assert torch.equal(load_pretrained(several, "item", (0, 10), (0, 6), shape=SHAPE), ROWS)
    with pytest.raises(
        DataError, match=r"several\.safetensors has no tensor 'itemz'\. Did you mean 'item'\?"
    ):
        load_pretrained(several, "itemz", (0, 10), (0, 6), shape=SHAPE)
    with pytest.raises(DataError, match=r"has no tensor 'xyz'\. It holds item, items\."):
        load_pretrained(several, "xyz", (0, 10), (0, 6), shape=SHAPE)


@pytest.mark.parametrize("suffix", [".npy", ".safetensors"])
def test_what_does_not_fit_is_refused(tmp_path: Path, suffix: str) -> None:
    def load(path: Path, shape: tuple[int, int] = SHAPE) -> torch.Tensor:
        return load_pretrained(path, "item", (0, 1), (0, 1), shape=shape)

    path = tmp_path / f"rows{suffix}"
    with pytest.raises(DataError, match=f"rows{suffix}: no such file; .* table 'item'"):
        load(path)
    path.write_text("no array")
    with pytest.raises(DataError, match=f"rows{suffix} is no (NumPy array|safetensors file)"):
        load(path)
    with pytest.raises(DataError, match=r"has shape \[10, 6\], and table 'item' has 10 rows of 8 numbers"):
        load(write(path), (10, 8))
    with pytest.raises(DataError, match=r"has shape \[\]"):
        load(write(path, torch.tensor(3.0)))
    with pytest.raises(DataError, match=r"holds (torch\.)?int64: pretrained rows are floating point"):
        load(write(path, ROWS.long()))


def test_other_kinds_of_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"rows\.csv: pretrained rows are read from \.npy and \.safetensors"):
        load_pretrained(tmp_path / "rows.csv", "item", (0, 1), (0, 1), shape=SHAPE)

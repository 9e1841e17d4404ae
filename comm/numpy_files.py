"""NumPy's files, read with errors that say what to do, and by one thread at a time."""

import threading
import tokenize
import warnings
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from windrow.comm.errors import DataError

__all__ = ["integer_row", "load_arrays", "map_array", "read_only_tensor"]

DAMAGES = (
    *(OSError, ValueError, EOFError, TypeError, AttributeError, SyntaxError),
    *(tokenize.TokenError, zipfile.BadZipFile, zlib.error),
)
"""What NumPy raises of bytes that are something else."""

HEADERS = threading.Lock()
"""NumPy parses headers by `ast`, which in CPython 3.11 fails now and then when two threads do so at once
("AST constructor recursion depth mismatch")."""


def load_arrays(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Load every array of an npz file, by name, and nothing that needs pickle.

    Raises:
        DataError: the file is not there, cannot be read, is no npz file, is damaged, or holds Python objects.
    """
    try:
        # Opened here: numpy leaves a damaged file open.
        with path.open("rb") as stream:
            try:
                file = np.load(stream, allow_pickle=False)
            except DAMAGES as error:
                raise DataError(f"{path}: no readable npz file ({error}); fetch or write it again") from error
            if not isinstance(file, np.lib.npyio.NpzFile):
                raise DataError(f"{path}: a single array, not an npz file; write it with numpy.savez")
            return {name: _load_array(path, file, name) for name in file.files}
    except FileNotFoundError as error:
        raise DataError(f"{path}: there is no such file; correct the path or fetch the data") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); correct the path or its permissions") from error


def map_array(path: Path) -> npt.NDArray[Any]:
    """Map an npy file into memory, read-only.

    Raises:
        ValueError: the file is missing or no npy file.
    """
    try:
        with HEADERS:
            array: npt.NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except DAMAGES as error:
        raise ValueError(str(error)) from error
    return array


def read_only_tensor(array: npt.NDArray[np.generic]) -> Tensor:
    """A tensor over memory that must not be written to, such as a mapped file: PyTorch has none that refuses it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable", category=UserWarning)
        return torch.from_numpy(array)


def integer_row(path: Path, arrays: Mapping[str, npt.NDArray[Any]], name: str) -> npt.NDArray[np.int64]:
    """Take a row of whole numbers, [n] converted to int64, out of a file's arrays.

    Raises:
        DataError: there is no such array, or it is something else.
    """
    if name not in arrays:
        raise DataError(f"{path}: there is no array {name!r}; the arrays are {sorted(arrays)}. Rename it")
    array = arrays[name]
    if not np.issubdtype(array.dtype, np.integer) or array.ndim != 1:
        raise DataError(f"{path}: array {name!r} has type {array.dtype} and shape {array.shape}; need 1-D integers")
    return array.astype(np.int64)


def _load_array(path: Path, file: Mapping[str, Any], name: str) -> npt.NDArray[Any]:
    try:
        with HEADERS:
            array: npt.NDArray[Any] = file[name]
    except DAMAGES as error:
        if isinstance(error, ValueError) and "pickle" in str(error):
            raise DataError(
                f"{path}: array {name!r} holds Python objects, which only pickle can load, and a pickle can "
                "run any code. Save it as numbers: convert it with .astype(...) before numpy.savez"
            ) from error
        raise DataError(f"{path}: array {name!r} is damaged ({error}); fetch it again") from error
    return array

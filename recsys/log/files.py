"""The files that a log is made of, each once, and the folders that are made of it."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from windrow.comm.errors import DataError, StoreError

__all__ = ["check_replaceable", "file_labels", "repeated_files", "resolve_files"]

ENDINGS = (".parquet", ".pq", ".csv", ".tsv", ".txt", ".libfm")
"""Of files of a log, each with or without ".gz" behind it."""


def resolve_files(paths: Sequence[Path]) -> tuple[Path, ...]:
    """Turn paths and patterns with ``*``, ``?`` and ``**`` into files: those of one pattern by path.

    A folder is no file: write ``folder/*.parquet``.

    Raises:
        DataError: a file is not there, cannot be looked up or is empty, a pattern matches nothing, a path is a folder,
            or a file is named twice.
    """
    found: list[Path] = []
    try:
        for path in paths:
            if path.is_dir():
                raise DataError(f"{path} is a folder: name its files, for example {path / '*.parquet'}")
            found += [path] if path.is_file() else _matches(path)
        for path in found:
            if path.stat().st_size == 0:
                raise DataError(f"{path} is empty: write it again, or leave it out")
    except OSError as error:
        raise DataError(
            f"{error.filename} cannot be looked up ({error.strerror}): correct the path or its permissions"
        ) from error
    if twice := repeated_files(found):
        raise DataError(f"{twice}: a file is named twice, so that its samples would count twice; name it once")
    return tuple(found)


def _matches(pattern: Path) -> list[Path]:
    anchor = Path(pattern.anchor)
    matches = sorted(path for path in anchor.glob(str(pattern.relative_to(anchor))) if path.is_file())
    if not matches:
        kind = "no file matches" if any(sign in str(pattern) for sign in "*?[") else "no such file"
        raise DataError(f"{pattern}: {kind}; correct the path, which in a recipe starts from its folder")
    return matches


def repeated_files(files: Sequence[Path]) -> str:
    """Names of files that are named more than once, commas between them; a link counts as the file that it leads to."""
    places = {file: file.resolve() for file in files}
    counts = Counter(places[file] for file in files)
    return ", ".join(sorted(str(file) for file, place in places.items() if counts[place] > 1))


def file_labels(files: Sequence[Path]) -> dict[Path, str]:
    """What the virtual column ``file`` holds: the name of each file of a log without `ENDINGS`.

    Where two files have the same name, all are called by as many of their folders as tell them apart: ``folder/name``;
    where they differ in their endings alone, by their paths.
    """
    stems: dict[Path, Path] = {}
    for path in files:
        name = path.name.removesuffix(".gz")
        stems[path] = path.with_name(next((name.removesuffix(end) for end in ENDINGS if name.endswith(end)), name))
    for depth in range(1, max((len(stem.parts) for stem in stems.values()), default=0) + 1):
        labels = {path: "/".join(stem.parts[-depth:]) for path, stem in stems.items()}
        if len(set(labels.values())) == len(labels):
            return labels
    return {path: str(path) for path in files}


def check_replaceable(folder: Path, *, overwrite: bool, what: str, marker: str) -> None:
    """Refuse to write where something else is: a mistaken path must not cost a folder of the user's own.

    For messages `what` is written: "prepared log"; every such folder has the file `marker`.

    Raises:
        StoreError: it exists and is not to be overwritten, or is neither empty nor what is written.
    """
    if not folder.exists():
        return
    if not overwrite:
        raise StoreError(f"{folder} already exists: choose another folder or pass --overwrite")
    if not (folder / marker).is_file() and not (folder.is_dir() and not any(folder.iterdir())):
        raise StoreError(
            f"{folder} is no {what} (there is no {marker} in it) and is not replaced: choose another folder, or remove "
            "it yourself"
        )

"""The files that a log is made of: paths and patterns resolved, each file once."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from windrow.comm.errors import DataError

__all__ = ["file_labels", "repeated_files", "resolve_files"]


def resolve_files(paths: Sequence[Path]) -> tuple[Path, ...]:
    """Turn paths and patterns into files.

    Args:
        paths: files, or patterns with ``*``, ``?`` and ``**``. A folder is no file: write ``folder/*.parquet``.

    Returns:
        The files, patterns replaced by the files that they match, by path.

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
        raise DataError(
            f"{twice}: a file is named twice, so that its samples would count twice; name it once"
        )
    return tuple(found)


def _matches(pattern: Path) -> list[Path]:
    anchor = Path(pattern.anchor)
    matches = sorted(path for path in anchor.glob(str(pattern.relative_to(anchor))) if path.is_file())
    if not matches:
        kind = "no file matches" if any(sign in str(pattern) for sign in "*?[") else "no such file"
        raise DataError(f"{pattern}: {kind}; correct the path, which in a recipe starts from its folder")
    return matches


def repeated_files(files: Sequence[Path]) -> str:
    """Find files that are named more than once, by whatever names: a link is the file that it leads to.

    Args:
        files: that exist.

    Returns:
        All their names with commas between them, as they are spelled; empty where there are none.
    """
    places = {file: file.resolve() for file in files}
    counts = Counter(places[file] for file in files)
    return ", ".join(sorted(str(file) for file, place in places.items() if counts[place] > 1))


def file_labels(files: Sequence[Path]) -> dict[Path, str]:
    """What the virtual column ``file`` holds: the name of each file without its endings.

    Args:
        files: of one log.

    Returns:
        Label of each file; ``folder/name`` for all of them where two files have the same name.
    """
    stems = {path: path.name.split(".")[0] for path in files}
    if len(set(stems.values())) == len(stems):
        return stems
    return {path: f"{path.parent.name}/{stem}" for path, stem in stems.items()}

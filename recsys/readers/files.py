"""Which files a recipe's paths and patterns name."""

from collections.abc import Sequence
from pathlib import Path

from windrow.comm.errors import DataError

__all__ = ["file_labels", "resolve_files"]


def resolve_files(paths: Sequence[Path]) -> tuple[Path, ...]:
    """Turn paths and patterns into files.

    Args:
        paths: files, or patterns with ``*``, ``?`` and ``**``. A folder is no file: write ``folder/*.parquet``.

    Returns:
        The files, patterns replaced by what they match, by name.

    Raises:
        DataError: a file is not there or is empty, a pattern matches nothing, a path is a folder, or a file is
            named twice.
    """
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            raise DataError(f"{path} is a folder: name its files, for example {path / '*.parquet'}")
        if path.is_file():
            found.append(path)
            continue
        matches = _matches(path)
        if not matches:
            kind = "no file matches" if any(sign in str(path) for sign in "*?[") else "no such file"
            raise DataError(f"{path}: {kind}; correct the path, which starts from the recipe's folder")
        found += matches
    for path in found:
        if path.stat().st_size == 0:
            raise DataError(f"{path} is empty: write it again, or leave it out of paths")
        if found.count(path) > 1:
            raise DataError(f"{path} is named twice: its samples would count twice; name it once")
    return tuple(found)


def _matches(pattern: Path) -> list[Path]:
    anchor = Path(pattern.anchor)
    return sorted(path for path in anchor.glob(str(pattern.relative_to(anchor))) if path.is_file())


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

"""The JSON document at the root of a store: written with its format version, refused when it is not that."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from windrow.comm.errors import StoreError

__all__ = ["read_document", "write_document"]


def write_document(path: Path, document: Mapping[str, Any], *, format_version: int) -> None:
    """Write a document as JSON.

    Args:
        path: the file.
        document: what JSON can hold; no NaN.
        format_version: stands first in the file.
    """
    versioned = {"format_version": format_version, **document}
    path.write_text(json.dumps(versioned, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def read_document(path: Path, *, format_version: int, store: str, cure: str) -> dict[str, Any]:
    """Read a document and check what it is.

    Args:
        path: the file.
        format_version: the one that this windrow reads.
        store: what the folder around it should be, for messages: "partition store".
        cure: what to do about it, for messages.

    Returns:
        The document, without its version.

    Raises:
        StoreError: there is none, it is no JSON object, or of another version.
    """
    if not path.is_file():
        raise StoreError(f"{path} is missing, so {path.parent} is no {store}: {cure}")
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise StoreError(f"{path} is not JSON ({error}): {cure}") from error
    if not isinstance(document, dict):
        raise StoreError(f"{path} holds a {type(document).__name__}, expected a JSON object: {cure}")
    version = document.pop("format_version", None)
    if version != format_version:
        newer = isinstance(version, int) and version > format_version
        raise StoreError(
            f"{path} has format version {version}, this windrow reads {format_version}: "
            f"{f'use a newer windrow, or {cure}' if newer else cure}"
        )
    return document

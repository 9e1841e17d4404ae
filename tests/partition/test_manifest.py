"""Documents and manifests: round trip, checksums, and what is said of one that cannot be read."""

import hashlib
import json
import re
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windrow.comm.errors import StoreError
from windrow.partition.manifest import (
    CURE,
    FORMAT_VERSION,
    MANIFEST_NAME,
    FileEntry,
    Manifest,
    describe_file,
    read_document,
    write_document,
)

COUNTS = st.integers(0, 2**62)
TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | COUNTS | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)
ENTRIES = st.builds(FileEntry, dtype=TEXT, shape=st.lists(COUNTS, max_size=3).map(tuple), num_bytes=COUNTS, sha256=TEXT)
MANIFESTS = st.builds(
    Manifest,
    windrow_version=TEXT,
    num_vertices=COUNTS,
    num_edges=COUNTS,
    num_parts=COUNTS,
    options=st.dictionaries(TEXT, VALUES, max_size=3),
    quality=st.none() | st.dictionaries(TEXT, VALUES, max_size=3),
    metadata=st.dictionaries(TEXT, VALUES, max_size=3),
    files=st.dictionaries(TEXT, ENTRIES, max_size=3),
)


@settings(max_examples=50)
@given(MANIFESTS)
def test_round_trip(manifest):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / MANIFEST_NAME
        manifest.write(path)
        assert json.loads(path.read_text(encoding="utf-8"))["format_version"] == FORMAT_VERSION
        assert Manifest.read(path) == manifest


def document(**changes):
    """A manifest as it is in the file."""
    entry = {"dtype": "<f4", "shape": [2], "num_bytes": 136, "sha256": "0" * 64}
    return {
        "format_version": FORMAT_VERSION, "windrow_version": "0.1.0", "num_vertices": 2, "num_edges": 0,
        "num_parts": 1, "options": {}, "quality": None, "metadata": {}, "files": {"shared/a.npy": entry}, **changes,
    }  # fmt: skip


@pytest.mark.parametrize("folder_exists", [False, True])
def test_a_folder_without_a_manifest_is_no_store(tmp_path, folder_exists):
    folder = tmp_path / "store"
    if folder_exists:
        folder.mkdir()
    message = f"{folder / MANIFEST_NAME} is missing, so {folder} is no partition store: {CURE}"
    with pytest.raises(StoreError, match=re.escape(message)):
        Manifest.read(folder / MANIFEST_NAME)


@pytest.mark.parametrize(
    ("content", "what"),
    [(content, r"is not JSON \(.+\)") for content in (b"", b"{", b'{"format_version": 1,}', b"\xff\xfe\x00")]
    + [(b"[]", "holds a list, expected a JSON object"), (b"null", "holds a NoneType, expected a JSON object")],
)
def test_what_is_no_json_object_is_named(tmp_path, content, what):
    path = tmp_path / MANIFEST_NAME
    path.write_bytes(content)
    with pytest.raises(StoreError, match=rf"{re.escape(str(path))} {what}: {CURE}"):
        Manifest.read(path)


@pytest.mark.parametrize(
    ("version", "cure"),
    [(FORMAT_VERSION + 1, f"use a newer windrow, or {CURE}"), (FORMAT_VERSION - 1, CURE), (None, CURE), ("two", CURE)],
)
def test_another_format_version_is_refused(tmp_path, version, cure):
    path = tmp_path / MANIFEST_NAME
    # A newer format may hold fields that this version does not know: the version is looked at first.
    path.write_text(json.dumps(document(format_version=version, fields_of_the_future=[1])))
    message = f"{path} has format version {version}, this windrow reads {FORMAT_VERSION}: {cure}"
    with pytest.raises(StoreError, match=rf"^{re.escape(message)}$"):
        Manifest.read(path)


@pytest.mark.parametrize(
    "changes",
    [
        {"unknown": 1},
        {"files": []},
        {"files": {"shared/a.npy": 3}},
        {"files": {"shared/a.npy": {}}},
        {"files": {"shared/a.npy": {"dtype": "<f4", "shape": 2, "num_bytes": 1, "sha256": ""}}},
        {"files": {"shared/a.npy": {"dtype": "<f4", "shape": [2], "num_bytes": 1, "sha256": "", "more": 1}}},
    ],
)
def test_unknown_and_malformed_fields_are_refused(tmp_path, changes):
    path = tmp_path / MANIFEST_NAME
    path.write_text(json.dumps(document(**changes)))
    with pytest.raises(StoreError, match=rf"lacks a field or has one too many \(.+\): {CURE}"):
        Manifest.read(path)


@pytest.mark.parametrize("field", [name for name in document() if name != "format_version"])
def test_a_field_that_is_lacking_is_named(tmp_path, field):
    path = tmp_path / MANIFEST_NAME
    path.write_text(json.dumps({name: value for name, value in document().items() if name != field}))
    with pytest.raises(StoreError, match=rf"lacks a field or has one too many \(.*{field}"):
        Manifest.read(path)


@pytest.mark.parametrize(
    "array", [np.zeros((3, 0, 2), np.float16), np.arange(6, dtype=">i4").reshape(2, 3), np.ones(4, bool)]
)
def test_describe_file(tmp_path, array):
    path = tmp_path / "a.npy"
    np.save(path, array)
    entry = describe_file(path)
    assert (entry.dtype, entry.shape) == (array.dtype.str, array.shape)
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    assert (entry.num_bytes, entry.sha256) == (path.stat().st_size, sha256)


def test_a_document_survives_and_has_no_numbers_that_json_lacks(tmp_path):
    path = tmp_path / "manifest.json"
    write_document(path, {"name": "käse", "rows": [1, 2]}, format_version=3)
    assert path.read_text(encoding="utf-8").startswith('{\n "format_version": 3,')
    found = read_document(path, format_version=3, store="heap of sand", cure="sweep it up")
    assert found == {"name": "käse", "rows": [1, 2]}
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_document(path, {"x": float("nan")}, format_version=3)

import pytest

from windrow.comm.errors import StoreError
from windrow.partition.manifest import read_document, write_document


def read(path):
    return read_document(path, format_version=3, store="heap of sand", cure="sweep it up")


def test_round_trip(tmp_path):
    path = tmp_path / "manifest.json"
    write_document(path, {"name": "käse", "rows": [1, 2]}, format_version=3)
    assert path.read_text(encoding="utf-8").startswith('{\n "format_version": 3,')
    assert read(path) == {"name": "käse", "rows": [1, 2]}


def test_not_a_number_is_no_json(tmp_path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_document(tmp_path / "manifest.json", {"x": float("nan")}, format_version=3)


def test_a_missing_file_names_the_store_and_the_cure(tmp_path):
    with pytest.raises(StoreError, match=r"is missing, so .* is no heap of sand: sweep it up"):
        read(tmp_path / "manifest.json")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\xff", "is not JSON"),
        (b"{", "is not JSON"),
        (b"[1]", "holds a list, expected a JSON object: sweep it up"),
        (b"{}", "has format version None, this windrow reads 3: sweep it up"),
        (b'{"format_version": 2}', "has format version 2, this windrow reads 3: sweep it up"),
        (
            b'{"format_version": 4}',
            "has format version 4, this windrow reads 3: use a newer windrow, or sweep",
        ),
    ],
)
def test_refusals(tmp_path, content, said):
    path = tmp_path / "manifest.json"
    path.write_bytes(content)
    with pytest.raises(StoreError, match=said):
        read(path)

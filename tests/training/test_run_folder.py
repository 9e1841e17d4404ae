"""windrow.training.run_folder: made once, never overwritten, found again."""

import json
from pathlib import Path

import pytest

from windrow.comm.errors import StoreError
from windrow.launch.settings import read_toml
from windrow.training.run_folder import check_free, create_run_folder, next_run_folder, open_run_folder


def test_a_new_folder_holds_recipe_and_environment(tmp_path: Path) -> None:
    folder = create_run_folder(tmp_path / "runs" / "a-1", {"model": {"hidden": 8}})
    assert read_toml(folder.recipe_file) == {"model": {"hidden": 8}}
    assert len(json.loads(folder.environment_file.read_text())) == 1
    again = open_run_folder(folder.path)
    again.record_environment()
    assert len(json.loads(folder.environment_file.read_text())) == 2


def test_a_used_folder_is_refused_with_the_cure(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "job.txt").touch()
    with pytest.raises(StoreError, match=r"already in use\. Name another run folder"):
        check_free(tmp_path / "other")
    create_run_folder(tmp_path / "a", {})
    with pytest.raises(StoreError, match=r"already in use.*--resume .*name another run folder"):
        create_run_folder(tmp_path / "a", {})
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match="already in use"):
        create_run_folder(tmp_path / "file", {})
    with pytest.raises(StoreError, match="cannot make the run folder"):
        create_run_folder(tmp_path / "file" / "b", {})


def test_an_empty_folder_may_be_used(tmp_path: Path) -> None:
    assert create_run_folder(tmp_path, {}).recipe_file.is_file()


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"holds no run.*give the folder of a run"):
        open_run_folder(tmp_path)


def test_names_are_numbered(tmp_path: Path) -> None:
    first = next_run_folder("tolokers", tmp_path)
    assert first == tmp_path / "tolokers-1"
    first.mkdir()
    (tmp_path / "tolokers-3").mkdir()
    assert next_run_folder("tolokers", tmp_path) == tmp_path / "tolokers-2"

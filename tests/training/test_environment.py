"""windrow.training.environment: plain, serialisable, and calm where something is absent."""

import json
from pathlib import Path

import pytest

from windrow.training import environment


def test_description_is_plain_json_and_names_the_essentials() -> None:
    described = json.loads(json.dumps(environment.describe()))
    assert set(described) == {"commit", "packages", "hardware"}
    assert {"python", "torch", "numpy", "windrow"} <= set(described["packages"])
    assert described["hardware"]["cores"] >= 1
    assert described["hardware"]["memory_bytes"] > 2**20


def test_a_package_that_is_not_installed_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "PACKAGES", ("numpy", "no-such-distribution"))
    assert set(environment.package_versions()) == {"python", "numpy"}


def test_commit_is_unknown_outside_a_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert environment.git_commit(tmp_path) == "unknown"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert environment.git_commit() == "unknown"


def test_commit_says_when_tracked_files_changed_but_results_of_benchmarks(tmp_path: Path) -> None:
    results, other = tmp_path / "benchmarks" / "results", tmp_path / "other" / "benchmarks" / "results"
    for folder in (results, other):
        folder.mkdir(parents=True)
        (folder / "x.json").write_text("{}")

    def git(*arguments: str) -> None:
        assert environment._git(tmp_path, *arguments) is not None

    git("init")
    git("add", ".")
    git("-c", "user.name=a", "-c", "user.email=a@example.org", "commit", "-m", "one")
    clean = environment.git_commit(tmp_path)
    assert len(clean) == 40
    folders = (tmp_path, tmp_path / "benchmarks", results)
    (results / "x.json").write_text("{1}")
    assert {environment.git_commit(folder) for folder in folders} == {clean}
    (other / "x.json").write_text("{1}")
    assert {environment.git_commit(folder) for folder in folders} == {f"{clean}-modified"}


def test_processor_model_is_read_from_cpuinfo(tmp_path: Path) -> None:
    listing = tmp_path / "cpuinfo"
    listing.write_text("processor\t: 0\nmodel name\t: A fast one\n")
    assert environment._processor_model(listing) == "A fast one"
    assert environment._processor_model(tmp_path / "absent")

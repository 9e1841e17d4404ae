"""What pip installs: all of the library, and nothing beside it."""

import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = [
    name
    for name in ("comm", "partition", "caching", "training", "gnn", "recsys", "launch")
    if (ROOT / name).is_dir()
]


@pytest.fixture(scope="module")
def distributions(tmp_path_factory):
    """Folder with a source distribution, and the wheel that is built from it, of a copy of the checkout."""
    copy = tmp_path_factory.mktemp("checkout")
    for file in checkout_files():
        (copy / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, copy / file)
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-P", "-m", "build", "--no-isolation", "--outdir", str(out), str(copy)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


@pytest.fixture(scope="module")
def wheel_files(distributions):
    (wheel,) = distributions.glob("*.whl")
    return set(zipfile.ZipFile(wheel).namelist())


def checkout_files() -> list[str]:
    """Files that git knows, or would not ignore."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("needs git and a checkout, to tell the project's files from others")
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\0")
    return [file for file in listed if file and (ROOT / file).is_file()]


def test_wheel_holds_windrow_only(wheel_files):
    strangers = {
        file
        for file in wheel_files
        if not (file.startswith("windrow/") or file.split("/")[0].endswith(".dist-info"))
    }
    assert not strangers


def test_wheel_holds_every_module_of_the_checkout(wheel_files):
    expected = {
        f"windrow/{file}"
        for file in checkout_files()
        if file.endswith(".py") and file.split("/")[0] in FOLDERS
    }
    assert {file for file in wheel_files if file.endswith(".py")} == expected


def test_wheel_holds_the_templates_of_the_report(wheel_files):
    templates = {f"windrow/launch/report/templates/page.{kind}" for kind in ("html.j2", "css", "js")}
    assert {file for file in wheel_files if "/templates/" in file} == templates


def test_wheel_tells_type_checkers_that_it_has_types(wheel_files):
    assert {f"windrow/{folder}/py.typed" for folder in FOLDERS} <= wheel_files


def test_wheel_has_licence_and_command(distributions, wheel_files):
    assert any(file.endswith(".dist-info/licenses/LICENSE") for file in wheel_files)
    (wheel,) = distributions.glob("*.whl")
    (entry_points,) = (file for file in wheel_files if file.endswith("entry_points.txt"))
    assert "windrow = windrow.launch.cli:main" in zipfile.ZipFile(wheel).read(entry_points).decode()


def test_source_distribution_is_a_whole_checkout(distributions):
    (sdist,) = distributions.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        files = {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}
    for_git_alone = {".gitignore"}
    assert set(checkout_files()) - files <= for_git_alone


@pytest.mark.parametrize("folder", FOLDERS)
def test_bare_names_are_not_ours(folder, tmp_path):
    """``import comm`` must not find this checkout: the name belongs to another project."""
    program = f"import importlib.util; print(getattr(importlib.util.find_spec({folder!r}), 'origin', None))"
    done = subprocess.run(
        [sys.executable, "-P", "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert str(ROOT) not in done.stdout or ".venv" in done.stdout

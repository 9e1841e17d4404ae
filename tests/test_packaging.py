"""What pip installs: all of the library, and nothing beside it."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "requirements"
FOLDERS = ("comm", "partition", "caching", "training", "gnn", "recsys", "launch")


@pytest.fixture(scope="module")
def distributions(tmp_path_factory):
    """Folder with a source distribution, and the wheel that is built from it, of a copy of the checkout."""
    copy = tmp_path_factory.mktemp("checkout")
    for file in checkout_files():
        (copy / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, copy / file, follow_symlinks=False)
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
    return [file for file in listed if file and ((ROOT / file).is_file() or (ROOT / file).is_symlink())]


def test_wheel_holds_windrow_only(wheel_files):
    assert not [file for file in wheel_files if not re.match(r"windrow/|[^/]*\.dist-info/", file)]


def test_wheel_holds_every_module_of_the_checkout_its_types_and_templates(wheel_files):
    in_folders = {f"windrow/{file}" for file in checkout_files() if file.split("/")[0] in FOLDERS}
    expected = {file for file in in_folders if file.endswith(".py")} | {"windrow/__init__.py"}
    assert {file for file in wheel_files if file.endswith(".py")} == expected
    templates = {f"windrow/launch/report/templates/page.{kind}" for kind in ("html.j2", "css", "js")}
    assert {file for file in wheel_files if "/templates/" in file} == templates
    assert "windrow/py.typed" in wheel_files


def test_wheel_has_licence_and_command(distributions, wheel_files):
    assert any(file.endswith(".dist-info/licenses/LICENSE") for file in wheel_files)
    (wheel,) = distributions.glob("*.whl")
    (entry_points,) = (file for file in wheel_files if file.endswith("entry_points.txt"))
    assert "windrow = windrow.launch.cli:main" in zipfile.ZipFile(wheel).read(entry_points).decode()


def test_requirements_are_bounded_and_take_what_is_tested(distributions):
    """No version comes in that nobody has tried: each has an upper bound, and the pinned versions are within."""
    (wheel,) = distributions.glob("*.whl")
    (file,) = (name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".dist-info/METADATA"))
    metadata = message_from_bytes(zipfile.ZipFile(wheel).read(file))
    assert {"all", "cpu"} <= set(metadata.get_all("Provides-Extra"))
    pins = dict(
        re.findall(
            r"^([\w-]+)==(\S+)$", "\n".join(path.read_text() for path in REQUIREMENTS.glob("*.txt")), re.MULTILINE
        )
    )
    tested = {canonicalize_name(name): version for name, version in pins.items()}
    for requirement in map(Requirement, metadata.get_all("Requires-Dist")):
        if "dev" not in str(requirement.marker) and requirement.name != "windrow":
            assert {bound.operator for bound in requirement.specifier} & {"<", "=="}, requirement
            assert tested[canonicalize_name(requirement.name)] in requirement.specifier, requirement


def test_source_distribution_is_a_whole_checkout(distributions):
    """The folders of the library are in it once, under `windrow/`: links become what they lead to."""
    (sdist,) = distributions.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        files = {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}
    expected = {
        f"windrow/{file}" if file.split("/")[0] in FOLDERS else file
        for file in checkout_files()
        if not (ROOT / file).is_symlink()
    }
    for_git_alone = {".gitignore"}
    assert expected - files <= for_git_alone


def test_bare_names_of_other_projects_come_first(tmp_path):
    """``import comm`` must not find this checkout where another project's package of that name is installed."""
    places = f"sys.path.index(site.getsitepackages()[0]), sys.path.index({str(ROOT)!r})"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-P", "-c", f"import site, sys; print({places})"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    if "is not in list" in done.stderr:
        pytest.skip("the library is installed, not this checkout")
    installed, checkout = map(int, done.stdout.split())
    assert installed < checkout

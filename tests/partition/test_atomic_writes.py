"""Files and folders appear whole or not at all, whatever stops the writer and wherever."""

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from windrow.comm.errors import StoreError
from windrow.partition.atomic_writes import atomic_folder, open_atomically, write_atomically


def test_contents_are_replaced_whole(tmp_path):
    path = tmp_path / "f"
    write_atomically(path, b"one ", memoryview(b"two"))
    assert path.read_bytes() == b"one two"
    write_atomically(path)
    assert path.read_bytes() == b""
    assert names(tmp_path) == ["f"]


def fail(*_):
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize(("place", "step"), [(os, "fsync"), (Path, "replace")])
def test_a_failure_leaves_the_old_file_and_no_other(tmp_path, monkeypatch, place, step):
    path = tmp_path / "f"
    path.write_bytes(b"old")
    monkeypatch.setattr(place, step, fail)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["f"]


def test_an_error_in_the_block_leaves_the_old_file(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(b"old")

    def write_half():
        with open_atomically(path) as file:
            file.write(b"ne")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_half()
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["f"]


def names(folder):
    return sorted(entry.name for entry in folder.iterdir())


def fill(path, text, *, overwrite=False):
    with atomic_folder(path, overwrite=overwrite) as folder:
        (folder / "inner").mkdir()
        (folder / "inner" / "file").write_text(text)


def content(path):
    return (path / "inner" / "file").read_text()


def test_appears_when_the_block_ends_with_the_folders_above_it(tmp_path):
    path = tmp_path / "a" / "b" / "store"
    with atomic_folder(path, overwrite=False) as folder:
        assert folder.parent == path.parent, "a rename must not cross file systems"
        assert names(folder) == []
        assert not path.exists()
    assert names(path.parent) == ["store"]


def test_replaces_only_when_told(tmp_path):
    path = tmp_path / "store"
    fill(path, "old")
    with pytest.raises(StoreError, match=r"store already exists: choose another folder or overwrite it"):
        fill(path, "new")
    assert content(path) == "old"
    fill(path, "new", overwrite=True)
    assert content(path) == "new"
    assert names(tmp_path) == ["store"]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt(), SystemExit(1)])
@pytest.mark.parametrize("existed", [False, True])
def test_an_error_in_the_block_leaves_what_was_there(tmp_path, existed, error):
    path = tmp_path / "store"
    if existed:
        fill(path, "old")

    def fill_half():
        with atomic_folder(path, overwrite=True) as folder:
            (folder / "half").write_text("new")
            raise error

    with pytest.raises(type(error)):
        fill_half()
    assert names(tmp_path) == (["store"] if existed else [])
    assert not existed or content(path) == "old"


@pytest.mark.parametrize("existed", [False, True])
def test_a_disk_that_is_full_when_flushing_leaves_what_was_there(tmp_path, monkeypatch, existed):
    path = tmp_path / "store"
    if existed:
        fill(path, "old")
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space left"):
        fill(path, "new", overwrite=True)
    assert names(tmp_path) == (["store"] if existed else [])
    assert not existed or content(path) == "old"


@pytest.mark.parametrize("failing_rename", [1, 2])
def test_a_failed_rename_leaves_what_was_there(tmp_path, monkeypatch, failing_rename):
    path = tmp_path / "store"
    fill(path, "old")
    rename, calls = Path.rename, []

    def counted(source, target):
        calls.append(source)
        if len(calls) == failing_rename:
            fail()
        return rename(source, target)

    monkeypatch.setattr(Path, "rename", counted)
    with pytest.raises(OSError, match="No space left"):
        fill(path, "new", overwrite=True)
    assert names(tmp_path) == ["store"]
    assert content(path) == "old"


def test_everything_is_flushed_before_the_rename(tmp_path, monkeypatch):
    if not Path("/proc/self/fd").is_dir():
        pytest.skip("needs /proc to tell what is flushed")
    flushed, fsync = [], os.fsync

    def recorded(descriptor):
        flushed.append(Path(f"/proc/self/fd/{descriptor}").readlink())
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", recorded)
    fill(tmp_path / "store", "new")
    assert [path.name for path in flushed[:2]] == ["inner", "file"]
    assert flushed[2].name.startswith("store.tmp-")
    assert flushed[3] == tmp_path


def test_leftovers_are_cleared_and_neighbours_are_not(tmp_path):
    leftovers = ["store.tmp-0123456789ab", "store.old-0123456789ab"]
    neighbours = ["store.old-2025", "store.tmp-mine", "store2.tmp-0123456789ab", "storexold-0123456789ab"]
    for name in ["store", *leftovers, *neighbours]:
        (tmp_path / name / "inner").mkdir(parents=True)
        (tmp_path / name / "inner" / "file").write_text(name)
    fill(tmp_path / "store", "new", overwrite=True)
    assert names(tmp_path) == sorted(["store", *neighbours])
    assert content(tmp_path / "store") == "new"
    assert [content(tmp_path / name) for name in neighbours] == neighbours


def test_a_store_caught_between_the_renames_is_put_back(tmp_path):
    fill(tmp_path / "store", "old")
    (tmp_path / "store").rename(tmp_path / "store.old-0123456789ab")
    fill(tmp_path / "other", "x")
    assert names(tmp_path) == ["other", "store.old-0123456789ab"]
    with pytest.raises(StoreError, match="already exists"):
        fill(tmp_path / "store", "new")
    assert content(tmp_path / "store") == "old"


KILLED_WRITERS = """
import os, shutil, signal, sys
from pathlib import Path
from windrow.partition.atomic_writes import atomic_folder

def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

def die_at_rename(number):
    rename, calls = Path.rename, []
    def counted(source, target):
        calls.append(source)
        if len(calls) == number:
            die()
        return rename(source, target)
    Path.rename = counted

def prepare(place):
    if place == "flush":
        os.fsync = die
    elif place == "first rename":
        die_at_rename(1)
    elif place == "second rename":
        die_at_rename(2)
    elif place == "clearing":
        shutil.rmtree = die

for folder in map(Path, sys.argv[1:]):
    child = os.fork()
    if child == 0:
        prepare(folder.name)
        with atomic_folder(folder / "store", overwrite=True) as filling:
            (filling / "inner").mkdir()
            (filling / "inner" / "file").write_text("new")
            if folder.name == "block":
                die()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, (folder, status)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and SIGKILL")
def test_a_killed_writer_leaves_a_whole_folder_wherever_it_dies(tmp_path):
    places = {"block": "old", "flush": "old", "first rename": "old", "second rename": None, "clearing": "new"}
    for place in places:
        (tmp_path / place).mkdir()
        fill(tmp_path / place / "store", "old")
    folders = [str(tmp_path / place) for place in places]
    subprocess.run([sys.executable, "-P", "-c", KILLED_WRITERS, *folders], cwd=tmp_path, check=True)
    for place, expected in places.items():
        path = tmp_path / place / "store"
        assert len(names(path.parent)) == 2, "the store and one leftover"
        if expected is None:
            assert not path.exists()
        else:
            assert content(path) == expected
        with pytest.raises(StoreError, match="already exists"):
            fill(path, "newest")
        assert names(path.parent) == ["store"], "the next writer clears the leftover, or puts the store back"
        assert content(path) == (expected or "old")
        fill(path, "newest", overwrite=True)
        assert names(path.parent) == ["store"]
        assert content(path) == "newest"
        shutil.rmtree(path)


def test_folders_that_cannot_be_made_or_written_to(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot make the folder"):
        fill(tmp_path / "file" / "store", "new")
    made = Path.mkdir

    def refuse(path, *arguments, **options):
        if ".tmp-" in path.name:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        made(path, *arguments, **options)

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(StoreError, match=f"cannot make the folder {tmp_path}/store: .*Permission denied"):
        fill(tmp_path / "store", "new")


def test_a_link_stays_and_what_it_leads_to_is_replaced(tmp_path):
    fill(tmp_path / "disk" / "store", "old")
    (tmp_path / "link").symlink_to(Path("disk") / "store")
    for text in ("new", "newer"):
        fill(tmp_path / "link", text, overwrite=True)
        assert content(tmp_path / "disk" / "store") == text
    assert names(tmp_path) == ["disk", "link"]
    assert names(tmp_path / "disk") == ["store"]
    (tmp_path / "ahead").symlink_to(Path("disk") / "later")
    fill(tmp_path / "ahead", "new")
    assert content(tmp_path / "disk" / "later") == "new"


def test_the_working_folder_can_be_replaced(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    fill(Path(), "new", overwrite=True)
    assert content(tmp_path / "here") == "new"


def test_links_that_lead_nowhere_and_leftovers_that_stay_are_told(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(StoreError, match="loop"):
        fill(tmp_path / "loop", "new")
    fill(tmp_path / "store", "old")
    (tmp_path / "store.old-0123456789ab").symlink_to("store")
    with pytest.raises(StoreError, match=r"cannot clear .*store\.old-0123456789ab, .*: .*Remove it yourself"):
        fill(tmp_path / "store", "new", overwrite=True)
    assert content(tmp_path / "store") == "old"

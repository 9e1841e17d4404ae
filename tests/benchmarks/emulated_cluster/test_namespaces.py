"""benchmarks.emulated_cluster.namespaces: what is private is private, and whoever loses its parent dies."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.emulated_cluster import namespaces

PRIVATE = """
import os
from pathlib import Path
from benchmarks.emulated_cluster.namespaces import bind, enter_namespaces, mount_private_folders
services = sorted(os.listdir("/var/run"))
enter_namespaces()
child = os.fork()
if child == 0:
    folder = mount_private_folders()
    (folder / "names").write_text("10.77.0.1 somewhere\\n")
    bind(folder / "names", Path("/etc/hosts"))
    print(os.getpid(), [name for name in os.listdir("/proc") if name.isdigit()], os.listdir("/sys/class/net") and "")
    print(Path("/etc/hosts").read_text().strip())
    print(os.listdir("/var/run/netns"), set(services) - set(os.listdir("/var/run")), flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""


def test_a_private_corner(cluster_command):
    before = outside()
    done = subprocess.run(
        [sys.executable, "-P", "-c", PRIVATE], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["1 ['1'] ", "10.77.0.1 somewhere", "[] set()"]
    assert before == outside()


def outside():
    services = sorted(path.name for path in Path("/var/run").iterdir())
    return Path("/etc/hosts").read_text(), Path("/proc/self/mountinfo").read_text(), services


def test_whoever_is_not_root_asks_for_a_user_namespace(monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(namespaces, "_call", lambda function, *arguments, about=None: asked.append(arguments))
    written = {}
    monkeypatch.setattr(Path, "write_text", lambda path, text: written.update({path.name: text}))
    namespaces.enter_namespaces()
    assert asked[0][0] & namespaces.CLONE_NEWUSER
    assert written["uid_map"] == "0 1000 1"
    assert next(iter(written)) == "setgroups", "the kernel wants this before a user's gid_map"


def test_a_parent_that_is_gone_is_noticed(monkeypatch):
    alive, kept_open = os.pipe()
    monkeypatch.setattr(namespaces, "_call", lambda *_: None)
    namespaces.die_with_parent(alive)
    os.close(kept_open)
    with pytest.raises(SystemExit):
        namespaces.die_with_parent(alive)
    os.close(alive)


@pytest.mark.skipif(sys.platform != "linux", reason="prctl is Linux's")
def test_a_child_dies_with_its_parent(family):
    child = (
        "import os, time; from benchmarks.emulated_cluster.namespaces import die_with_parent; "
        "die_with_parent(os.pipe()[0]); "
        "print('ready', flush=True); time.sleep(600)"
    )
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-P', '-c', {child!r}])"
    process = subprocess.Popen([sys.executable, "-P", "-c", parent], stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process, process.stdout as output:
        assert output.readline() == b"ready\n"
        (orphan,) = family(process.pid) - {process.pid}
        process.send_signal(signal.SIGKILL)
        end = time.monotonic() + 20
        while family(orphan):
            assert time.monotonic() < end, "the child outlived its parent"
            time.sleep(0.01)

"""windrow.launch.cluster.run: what mpirun finds, and which mpirun it may be."""

import json
import os
import subprocess

import pytest

from windrow.comm.errors import ClusterError
from windrow.launch.cluster.network import SetUp, make_options
from windrow.launch.cluster.run import cluster_environment, require_mpich, write_launcher_files

OPTIONS = make_options(3, "1gbit,10gbit,unlimited")


def program(folder, name, text):
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def test_files(tmp_path):
    files = write_launcher_files(OPTIONS, tmp_path)
    assert files.host_file.read_text().split() == list(OPTIONS.hosts)
    names = dict(reversed(line.split()) for line in files.names.read_text().splitlines()[2:])
    assert names["host0-1gbit"] == "10.77.0.1"
    assert names["host2-unlimited"] == "10.77.0.3"
    assert names[os.uname().nodename] == "10.77.0.254"


def test_the_script_enters_the_host_it_is_called_with(tmp_path, monkeypatch):
    (tmp_path / "bin").mkdir()
    # Stand-ins that show what they would do, and then do the rest.
    program(tmp_path / "bin", "ip", 'echo "network $3"; shift 3; exec "$@"')
    program(tmp_path / "bin", "unshare", 'while [ "$1" != sh ]; do shift; done; exec "$@"')
    program(tmp_path / "bin", "hostname", 'echo "name $1"')
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    script = write_launcher_files(OPTIONS, tmp_path).script
    done = subprocess.run(
        [script, "-x", "-q", "host1-10gbit", "printf", "'%s.'", "'a b'", "-x;", "exit", "4"],
        capture_output=True,
        text=True,
        check=False,
        timeout=20,
    )
    assert done.stdout == "network host1-10gbit\nname host1-10gbit\na b.-x."
    assert done.returncode == 4


def test_environment(tmp_path):
    files = write_launcher_files(OPTIONS, tmp_path)
    outside = {"HOME": "/h", "UCX_TLS": "all", "HYDRA_BOOTSTRAP": "slurm", "HYDRA_BINDING": "core"}
    inside = cluster_environment(OPTIONS, files, outside)
    assert inside["HOME"] == "/h"
    assert inside["HYDRA_BINDING"] == "core"
    assert inside["UCX_TLS"] == "tcp,self"
    assert "HYDRA_BOOTSTRAP" not in inside
    assert inside["HYDRA_HOST_FILE"] == str(files.host_file)
    assert json.loads(inside["WINDROW_CLUSTER"])["hosts"] == list(OPTIONS.hosts)
    assert outside["UCX_TLS"] == "all"


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ("echo 'mpirun (Open MPI) 5.0.5'", r"not MPICH's \(mpirun \(Open MPI\) 5\.0\.5\).*Install MPICH"),
        ("exit 3", r"not MPICH's \(exit status 3\)"),
    ],
)
def test_another_mpirun_is_refused(tmp_path, monkeypatch, said, message):
    program(tmp_path, "mpirun", said)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    with pytest.raises(ClusterError, match=message):
        require_mpich(SetUp(20))


def test_mpich_is_taken_and_no_mpirun_is_refused(tmp_path, monkeypatch):
    program(tmp_path, "mpirun", "echo 'HYDRA build details:'")
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    require_mpich(SetUp(20))
    (tmp_path / "mpirun").unlink()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ClusterError, match=r"no mpirun .*pip install windrow\[mpich\]"):
        require_mpich(SetUp(20))

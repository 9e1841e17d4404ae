"""benchmarks.emulated_cluster.run: what mpirun finds; real clusters, how they end, and that nothing is left of them."""

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from benchmarks.emulated_cluster import run
from benchmarks.emulated_cluster.network import ClusterError, SetUp, make_options
from benchmarks.emulated_cluster.run import cluster_environment, require_mpich, write_launcher_files

PATIENCE_S = 60
"""How long anything may take here before the test fails."""

EXCHANGE = """
import json, time
from pathlib import Path
import numpy as np
from mpi4py import MPI
world = MPI.COMM_WORLD
sent = Path("/sys/class/net/eth0/statistics/tx_bytes")
message = np.full(SIZE, world.rank, np.uint8)
received = np.empty_like(message)
before, start = int(sent.read_text()), time.perf_counter()
world.Sendrecv(message, dest=1 - world.rank, recvbuf=received, source=1 - world.rank)
world.Barrier()
told = world.gather((MPI.Get_processor_name(), int(received[-1]), int(sent.read_text()) - before))
if world.rank == 0:
    print(json.dumps({"seconds": time.perf_counter() - start, "ranks": told}))
"""


def ranks(program):
    return "mpirun", "-n", "2", sys.executable, "-P", "-c", program


def test_messages_cross_the_links_and_keep_the_rate(run_cluster):
    size = 4_000_000
    done = run_cluster("2", "100mbit,1gbit", *ranks(EXCHANGE.replace("SIZE", str(size))))
    assert done.returncode == 0, done.stderr
    assert re.search(r"^cluster: 2 hosts, 100mbit, 1gbit; ping-pong .* Gbit/s, \d+ MB counted", done.stderr)
    found = json.loads(done.stdout)
    assert [name for name, _, _ in found["ranks"]] == ["host0-100mbit", "host1-1gbit"]
    assert [value for _, value, _ in found["ranks"]] == [1, 0]
    assert all(size < counted < 1.2 * size for _, _, counted in found["ranks"])
    # No link lets more through than its bucket holds and its rate brings, however slow this machine is.
    assert found["seconds"] > (size - 130_000) * 8 / 1e8


def test_what_the_command_sees(run_cluster):
    see = (
        "import os, json, socket; from pathlib import Path; "
        "print(json.dumps([os.uname().nodename, socket.gethostbyname(os.uname().nodename), "
        "sorted(os.listdir('/sys/class/net')), os.environ['WINDROW_CLUSTER'], "
        "Path('/proc/sys/net/ipv4/tcp_slow_start_after_idle').read_text().strip()]))"
    )
    done = run_cluster("2", "unlimited,100mbit", "mpirun", "-n", "3", sys.executable, "-P", "-c", see)
    assert done.returncode == 0, done.stderr
    # Ranks write at the same moment, and the launcher may join their lines.
    seen = sorted(json.loads(line) for line in done.stdout.replace("][", "]\n[").splitlines() if line)
    assert [line[0] for line in seen] == ["host0-unlimited", "host0-unlimited", "host1-100mbit"]
    assert [line[1] for line in seen] == ["10.77.0.1", "10.77.0.1", "10.77.0.2"]
    assert all(line[2] == ["eth0", "lo"] and line[4] == "0" for line in seen)
    cluster = {"hosts": ["host0-unlimited", "host1-100mbit"], "rates_bits_per_second": [None, 10**8]}
    assert all(json.loads(line[3]) == cluster for line in seen)


@pytest.mark.parametrize(
    ("command", "status"),
    [
        (("true",), 0),
        (("sh", "-c", "exit 3"), 3),
        (("sh", "-c", "kill -9 $$"), 137),
        (("no-such-program",), 127),
        (("/etc/hosts",), 126),
        (("sh", "-c", "sleep 600 & exit 4"), 4),
    ],
)
def test_the_status_of_the_command_is_passed_on(run_cluster, command, status):
    done = run_cluster("2", "unlimited", *command)
    assert done.returncode == status, done.stderr
    assert ("cannot start" in done.stderr) == (status in {126, 127})


def test_a_rank_that_fails_ends_the_command(run_cluster):
    done = run_cluster("2", "unlimited", *ranks("import os, sys; sys.exit(7 * int(os.environ['PMI_RANK']))"))
    assert done.returncode == 7


def test_orphans_are_reaped(run_cluster):
    count = "grep -l '(zombie)' /proc/[0-9]*/status 2>/dev/null | wc -l"
    done = run_cluster("2", "unlimited", "sh", "-c", f"for i in 1 2 3; do (true &) ; done; sleep 1; {count}")
    assert done.stdout.strip() == "0"


def test_a_cluster_in_a_cluster_is_refused(run_cluster, cluster_command):
    inner = [*cluster_command, "--hosts", "2", "--rate", "1gbit", "--", "true"]
    done = run_cluster("2", "unlimited", *inner)
    assert done.returncode == 2
    assert "emulated cluster already" in done.stderr


@contextlib.contextmanager
def started(cluster_command, environment, *command, rate="unlimited"):
    """A cluster that runs a command, and is gone after the block, whatever happens there."""
    options = ["--hosts", "2", "--rate", rate, "--"]
    process = subprocess.Popen(
        [*cluster_command, *options, *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=PATIENCE_S)


def wait_for_word(process, word, times=1):
    """Ranks write at the same moment, and the launcher may join their lines."""
    read = ""
    while read.count(word) < times:
        line = process.stdout.readline()
        assert line, f"the command ended before it said {word!r} {times} time(s)"
        read += line


def wait_until(what, condition):
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, f"waited {PATIENCE_S} s: {what}"
        time.sleep(0.02)


def network_of(process):
    try:
        return str(Path(f"/proc/{process}/ns/net").readlink())
    except OSError:
        return None


def everybody():
    return {int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()}


def names_outside():
    """Named network namespaces and network interfaces of this machine."""
    named = Path("/var/run/netns")
    return {
        *(path.name for path in (named.iterdir() if named.is_dir() else ())),
        *(line.partition(":")[0].strip() for line in Path("/proc/net/dev").read_text().splitlines()[2:]),
    }


SLEEP = "print('here', flush=True); import time; time.sleep(600)"


@pytest.mark.parametrize("victim", ["outer", "process 1", "rank"])
def test_nothing_is_left_after_a_kill(cluster_command, cluster_environment, family, victim):
    before = names_outside()
    with started(cluster_command, cluster_environment, *ranks(SLEEP)) as process:
        wait_for_word(process, "here", times=2)
        members = family(process.pid)
        networks = {network_of(member) for member in members}
        assert len(networks) >= 3, "two hosts and the switch"
        assert not {name for name in names_outside() - before if name.startswith(("host0-", "port", "switch"))}
        first = min(members - {process.pid})
        someone = max(member for member in members if network_of(member) != network_of(process.pid))
        os.kill({"outer": process.pid, "process 1": first, "rank": someone}[victim], signal.SIGKILL)
        wait_until("processes end", lambda: not any(family(member) for member in members))
        wait_until("networks end", lambda: not networks & {network_of(member) for member in everybody()})
        assert process.wait(PATIENCE_S) != 0


@pytest.mark.skipif(Path(sys.prefix).is_relative_to("/tmp"), reason="Python is in /tmp, which this test covers")
def test_files_that_a_killed_rank_would_leave_are_private(run_cluster):
    """Its shared memory, and its launcher's description of the processors."""
    look = (
        "import json, os; from glob import glob; from mpi4py import MPI; "
        "json.dump([glob('/tmp/hydra_hwloc*'), os.path.exists('/dev/shm/NAME'), os.path.exists('/dev/shm/NAME-new')], "
        "open('/dev/shm/NAME/seen', 'w')) if MPI.COMM_WORLD.rank == 0 else None"
    )
    with tempfile.TemporaryDirectory(dir="/dev/shm") as before:
        name = Path(before).name
        rank = shlex.join(ranks(look.replace("NAME", name)))
        # A /tmp that no other mpirun of this machine writes to.
        script = f"touch /dev/shm/{name}-new && mount -t tmpfs none /tmp && {rank}"
        done = run_cluster("2", "unlimited", "sh", "-c", script)
        assert done.returncode == 0, done.stderr
        descriptions, outside_is_seen, inside_is_seen = json.loads((Path(before) / "seen").read_text())
        assert not descriptions
        assert outside_is_seen
        assert inside_is_seen
        assert not Path(f"{before}-new").exists()


def test_a_caller_that_ignores_its_children(cluster_command, cluster_environment):
    """It leaves SIGCHLD ignored, and the kernel then forgets how a child ended."""
    command = [*cluster_command, "--hosts", "2", "--rate", "unlimited", "--", "sh", "-c", "exit 3"]
    ignore = "import os, sys; from signal import *; signal(SIGCHLD, SIG_IGN); os.execv(sys.executable, sys.argv[1:])"
    done = subprocess.run(
        [sys.executable, "-P", "-c", ignore, *command],
        env=cluster_environment,
        capture_output=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 3


def test_a_host_whose_launcher_dies_takes_its_ranks_along(cluster_command, cluster_environment, family):
    with started(cluster_command, cluster_environment, *ranks(SLEEP)) as process:
        wait_for_word(process, "here", times=2)
        members = family(process.pid)
        proxy = next(member for member in members if "hydra_pmi_proxy" in program_of(member))
        os.kill(proxy, signal.SIGKILL)
        assert process.wait(PATIENCE_S) != 0
        wait_until("processes end", lambda: not any(family(member) for member in members))


def program_of(process):
    return Path(f"/proc/{process}/comm").read_text().strip()


@pytest.mark.parametrize("delay_s", [0.05, 0.3, 0.6, 1.0])
def test_nothing_is_left_after_a_kill_during_the_set_up(cluster_command, cluster_environment, family, delay_s):
    with started(cluster_command, cluster_environment, "sleep", "600", rate="10mbit") as process:
        time.sleep(delay_s)
        members = family(process.pid)
        process.kill()
        wait_until("processes end", lambda: not any(family(member) for member in members))


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_are_passed_on(cluster_command, cluster_environment, family, number, status):
    with started(cluster_command, cluster_environment, sys.executable, "-P", "-c", SLEEP) as process:
        wait_for_word(process, "here")
        members = family(process.pid)
        process.send_signal(number)
        assert process.wait(PATIENCE_S) == status
        wait_until("processes end", lambda: not any(family(member) for member in members))


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_set_up(cluster_command, cluster_environment, family, number, status):
    with started(cluster_command, cluster_environment, "sleep", "600", rate="10mbit") as process:
        wait_until("the set-up begins", lambda: len(family(process.pid)) > 2)
        process.send_signal(number)
        assert process.wait(PATIENCE_S) == status


def test_the_second_signal_ends_a_command_that_will_not(cluster_command, cluster_environment):
    stubborn = "import signal, time; signal.signal(15, lambda *_: print('no', flush=True)); print('here', flush=True)"
    stubborn += "\nwhile True: time.sleep(1)"
    with started(cluster_command, cluster_environment, sys.executable, "-P", "-c", stubborn) as process:
        wait_for_word(process, "here")
        process.terminate()
        wait_for_word(process, "no")
        process.terminate()
        assert process.wait(PATIENCE_S) == 128 + signal.SIGKILL


def test_two_clusters_at_the_same_time(cluster_command, cluster_environment):
    with (
        started(cluster_command, cluster_environment, *ranks(SLEEP)) as one,
        started(cluster_command, cluster_environment, *ranks(SLEEP)) as other,
    ):
        wait_for_word(one, "here", times=2)
        wait_for_word(other, "here", times=2)


REFUSE = """
import os, sys
from benchmarks.emulated_cluster import namespaces
from benchmarks.emulated_cluster.__main__ import main
def refuse(function, *_, about=None):
    if function == sys.argv[1]:
        raise PermissionError(1, "Operation not permitted", about)
    call(function, *_, about=about)
call, namespaces._call = namespaces._call, refuse
sys.exit(main(["--hosts", "2", "--rate", "1gbit", "true"]))
"""


@pytest.mark.parametrize("function", ["unshare", "mount"])
def test_a_kernel_that_refuses_is_explained(cluster_command, cluster_environment, function):
    command = [sys.executable, "-P", "-c", REFUSE, function]
    done = subprocess.run(
        command, env=cluster_environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 2
    told = r"emulated_cluster: error: .*Operation not permitted.*sudo.*user\.max_user_namespaces.*What works"
    assert re.match(told, done.stderr)


def test_another_system_and_several_processes_are_refused(monkeypatch):
    monkeypatch.delenv("WINDROW_CLUSTER", raising=False)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(ClusterError, match="the launcher started 2: no mpirun"):
        run.require_machine()
    monkeypatch.delenv("WORLD_SIZE")
    with monkeypatch.context() as patch:
        patch.setattr(sys, "platform", "darwin")
        with pytest.raises(ClusterError, match=r"this is darwin\. What works without"):
            run.require_machine()
    monkeypatch.setattr(run, "require_tools", lambda: None)
    monkeypatch.setattr(run, "require_mpich", lambda _: None)
    run.require_machine()
    monkeypatch.setenv("WINDROW_CLUSTER", "{}")
    with pytest.raises(ClusterError, match="emulated cluster already"):
        run.run_in_cluster(make_options(2, "1gbit"), ["true"])


OPTIONS = make_options(3, "1gbit,10gbit,unlimited")


def program(folder, name, text):
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def test_files(tmp_path):
    write_launcher_files(OPTIONS, tmp_path)
    assert (tmp_path / "hosts").read_text().split() == list(OPTIONS.hosts)
    names = dict(reversed(line.split()) for line in (tmp_path / "names").read_text().splitlines()[2:])
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
    write_launcher_files(OPTIONS, tmp_path)
    done = subprocess.run(
        [tmp_path / "enter-host", "-x", "-q", "host1-10gbit", "printf", "'%s.'", "'a b'", "-x;", "exit", "4"],
        capture_output=True,
        text=True,
        check=False,
        timeout=20,
    )
    assert done.stdout == "network host1-10gbit\nname host1-10gbit\na b.-x."
    assert done.returncode == 4


def test_environment(tmp_path):
    outside = {"HOME": "/h", "UCX_TLS": "all", "HYDRA_BOOTSTRAP": "slurm", "HYDRA_BINDING": "core"}
    inside = cluster_environment(OPTIONS, tmp_path, outside)
    assert inside["HOME"] == "/h"
    assert inside["HYDRA_BINDING"] == "core"
    assert inside["UCX_TLS"] == "tcp,self"
    assert "HYDRA_BOOTSTRAP" not in inside
    assert inside["HYDRA_HOST_FILE"] == str(tmp_path / "hosts")
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


def test_mpich_is_taken(tmp_path, monkeypatch):
    program(tmp_path, "mpirun", "echo 'HYDRA build details:'")
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    require_mpich(SetUp(20))

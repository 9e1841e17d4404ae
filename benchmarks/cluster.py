"""Emulated clusters are started and stopped, half of them killed at random moments: how quick is it, and what is left?

Each round starts four hosts with links of 1 Gbit/s and four MPI ranks that sum vectors over them. Half of the rounds
end by themselves. In the others one process is killed with SIGKILL at a random moment, during the set-up with its proof
or while ranks run: the outer process, which a user or a job scheduler would hit, or a random one inside. Then
everything that was there is looked for: processes, network namespaces, network interfaces.

    python benchmarks/cluster.py [--short] [--seed SEED]
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Literal

from benchmarks.harness.program import Program, run_benchmark
from benchmarks.harness.result import Aim, Findings, Table
from benchmarks.harness.workers import emulated_cluster, family, is_alive, mpirun

HOSTS = 4
RATE = "1gbit"
ROUNDS = 20
ROUNDS_SHORT = 6
DEADLINE_S = 30.0
"""Until everything is gone; what is there then counts as left."""

START_DEADLINE_S = 120.0
LONGEST_RUN_S = 1.0
"""Seconds after which ranks that run are killed, at the latest."""

POLL_S = 0.005

RANK = """
import sys
import numpy as np
from mpi4py import MPI
values = np.ones(1 << 20, np.float32)
MPI.COMM_WORLD.Barrier()
print("ready", flush=True)
for _ in range(int(sys.argv[1])):
    MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, values)
    values /= MPI.COMM_WORLD.size
"""
SUMS = 5
ENDLESS = 10**9

End = Literal["by itself", "killed in the set-up", "killed while ranks run"]


@dataclass(frozen=True)
class Round:
    """One start and stop."""

    end: End
    victim: str
    start_seconds: float | None
    seconds_until_gone: float
    processes_left: int
    namespaces_left: int
    links_left: int


@dataclass
class Seen:
    """What was there while a cluster was up."""

    processes: set[int]
    networks: set[str]


def start_cluster(sums: int) -> subprocess.Popen[str]:
    """Start a cluster with ranks, without waiting for it."""
    rank = [sys.executable, "-P", "-c", RANK, str(sums)]
    command = [*emulated_cluster(HOSTS, RATE), *mpirun(HOSTS), *rank]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def networks_of(processes: set[int]) -> set[str]:
    """Network namespaces that processes are in."""
    found: set[str] = set()
    for process in processes:
        try:
            found.add(str(Path(f"/proc/{process}/ns/net").readlink()))
        except OSError:
            continue
    return found


def mounted_networks() -> set[str]:
    """Network namespaces that a mount of this machine keeps alive, as ``ip netns`` makes them."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return {line.split()[3] for line in lines if " - nsfs " in line}


def interfaces() -> set[str]:
    """Network interfaces of this machine that are called as those of a cluster."""
    names = (line.partition(":")[0].strip() for line in Path("/proc/net/dev").read_text().splitlines()[2:])
    return {name for name in names if name.startswith(("switch", "port"))}


def all_processes() -> set[int]:
    """Every process of this machine."""
    return {int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()}


def look(process: int, seen: Seen) -> None:
    """Add what is there now."""
    members = family(process)
    seen.processes |= members
    seen.networks |= networks_of(members) - networks_of({os.getpid()})


def forget_what_is_gone(seen: Seen) -> None:
    """Keep what is still there. For good: the kernel gives numbers of what is gone to what comes next."""
    seen.processes = {member for member in seen.processes if is_alive(member)}
    seen.networks &= networks_of(all_processes()) | mounted_networks()


def wait_for_ranks(process: subprocess.Popen[str]) -> None:
    """Wait until every rank runs."""
    assert process.stdout is not None
    seen = ""
    # Ranks write at the same moment, and the launcher may join their lines.
    while seen.count("ready") < HOSTS:
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(
                f"a cluster that nobody killed ended with status {process.wait(START_DEADLINE_S)} before its ranks "
                f"ran: python -m benchmarks.emulated_cluster --hosts {HOSTS} --rate {RATE} -- true says why"
            )
        seen += line


def one_round(end: End, chance: random.Random, usual_start_s: float) -> Round:
    """Start a cluster, end it, and look at what is left."""
    links_before = interfaces()
    began = time.monotonic()
    process = start_cluster(SUMS if end == "by itself" else ENDLESS)
    seen = Seen(processes=set(), networks=set())
    start_s = None
    if end == "killed in the set-up":
        moment = began + chance.uniform(0, usual_start_s)
        while time.monotonic() < moment:
            look(process.pid, seen)
            time.sleep(POLL_S)
    else:
        wait_for_ranks(process)
        start_s = time.monotonic() - began
    look(process.pid, seen)
    victim = ""
    if end != "by itself":
        if end == "killed while ranks run":
            time.sleep(chance.uniform(0, LONGEST_RUN_S))
        victim = kill_one(process.pid, chance)
    ended = time.monotonic()
    while process.poll() is None or seen.processes or seen.networks:
        if time.monotonic() - ended > DEADLINE_S:
            break
        time.sleep(POLL_S)
        forget_what_is_gone(seen)
    seconds = time.monotonic() - ended
    links = len(interfaces() - links_before)
    process.kill()
    process.communicate()
    return Round(end, victim, start_s, seconds, len(seen.processes), len(seen.networks), links)


def kill_one(outer: int, chance: random.Random) -> str:
    """Kill the outer process or a random one inside, and say which."""
    inside = sorted(family(outer) - {outer})
    victim = outer if not inside or chance.random() < 0.5 else chance.choice(inside)
    try:
        name = Path(f"/proc/{victim}/comm").read_text().strip()
        os.kill(victim, signal.SIGKILL)
    except (OSError, ProcessLookupError):
        # It ended by itself between the two looks.
        victim = outer
        os.kill(outer, signal.SIGKILL)
    return "outer process" if victim == outer else f"inside: {name}"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of this benchmark alone."""
    parser.add_argument("--seed", type=int, default=time.time_ns() % 2**31, help="of the moments; default: the clock")


def measure(program: Program) -> Findings:
    """Start, stop, kill, and look at what is left."""
    print(f"moments are drawn with --seed {program.options.seed}")
    chance = random.Random(program.options.seed)
    rounds: list[Round] = []
    ends: tuple[End, ...] = ("by itself", "killed in the set-up", "by itself", "killed while ranks run")
    for number in range(ROUNDS_SHORT if program.short else ROUNDS):
        starts = [one.start_seconds for one in rounds if one.start_seconds is not None]
        rounds.append(one_round(ends[number % len(ends)], chance, median(starts) if starts else 0.0))
    starts = [one.start_seconds for one in rounds if one.start_seconds is not None]
    killed = [one.seconds_until_gone for one in rounds if one.victim]
    processes, networks, links = (
        sum(getattr(one, name) for one in rounds) for name in ("processes_left", "namespaces_left", "links_left")
    )
    return Findings(
        figures={
            "starts_count": len(rounds),
            "kills_count": len(killed),
            "median_start_seconds": median(starts),
            "slowest_start_seconds": max(starts),
            "median_until_gone_after_kill_seconds": median(killed),
            "slowest_until_gone_after_kill_seconds": max(killed),
            "processes_left_count": processes,
            "namespaces_left_count": networks,
            "links_left_count": links,
        },
        aims={
            "processes": Aim("no process left", processes == 0),
            "namespaces": Aim("no namespace left", networks == 0),
            "links": Aim("no bridge and no interface left", links == 0),
        },
        tables={"starts and stops": Table.from_rows([asdict(one) for one in rounds])},
    )


if __name__ == "__main__":
    run_benchmark(__file__, __doc__, measure, add_options=add_options)

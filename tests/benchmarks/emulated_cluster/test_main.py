"""python -m benchmarks.emulated_cluster: what reaches the cluster, and what is refused before there is one."""

import subprocess
import sys

import pytest

from benchmarks.emulated_cluster import __main__ as program


def test_the_command_keeps_its_own_options(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def run_in_cluster(options: object, command: object) -> int:
        seen.append((options, command))
        return 5

    monkeypatch.setattr(program, "run_in_cluster", run_in_cluster)
    command = ["mpirun", "-n", "2", "sh", "-c", "a b", "--", "--hosts", "9", "--help"]
    assert program.main(["--hosts", "2", "--rate", "1gbit,unlimited", "--", *command]) == 5
    ((options, given),) = seen
    assert options.rates == (10**9, None)
    assert given == command


@pytest.mark.parametrize(
    ("hosts", "rest", "words"),
    [
        ("2", (), "no command to run: give it after --"),
        ("2", ("--",), "no command to run: give it after --"),
        ("1", ("--", "true"), "--hosts 2 or more"),
    ],
)
def test_wrong_use_is_refused(hosts: str, rest: tuple[str, ...], words: str) -> None:
    command = [sys.executable, "-P", "-m", "benchmarks.emulated_cluster", "--hosts", hosts, "--rate", "1gbit", *rest]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert words in done.stderr

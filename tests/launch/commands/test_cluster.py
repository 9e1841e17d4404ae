"""windrow.launch.commands.cluster: what reaches the cluster, and what is refused before there is one."""

import argparse

import pytest

from windrow.comm.errors import ClusterError
from windrow.launch.cluster import run as cluster_run
from windrow.launch.commands import cluster


def cluster_with(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    cluster.add_parser(parser.add_subparsers())
    parsed = parser.parse_args(["cluster", *arguments])
    return int(parsed.run(parsed))


def test_the_command_keeps_its_own_options(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def run_in_cluster(options: object, command: object) -> int:
        seen.append((options, command))
        return 5

    monkeypatch.setattr(cluster_run, "run_in_cluster", run_in_cluster)
    command = ["mpirun", "-n", "2", "sh", "-c", "a b", "--", "--hosts", "9", "--help"]
    assert cluster_with("--hosts", "2", "--rate", "1gbit,unlimited", "--", *command) == 5
    ((options, given),) = seen
    assert options.rates == (10**9, None)
    assert given == command


@pytest.mark.parametrize("rest", [(), ("--",)])
def test_no_command(rest: tuple[str, ...]) -> None:
    with pytest.raises(ClusterError, match="no command to run: give it after --"):
        cluster_with("--hosts", "2", "--rate", "1gbit", *rest)


def test_one_host(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ClusterError, match="--hosts 2 or more"):
        cluster_with("--hosts", "1", "--rate", "1gbit", "--", "true")

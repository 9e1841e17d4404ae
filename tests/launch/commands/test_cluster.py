"""windrow.launch.commands.cluster: what reaches the cluster, and what is refused before there is one."""

import pytest

from windrow.comm.errors import ClusterError
from windrow.launch.cli import build_parser
from windrow.launch.cluster import run as cluster_run


def cluster_with(*arguments: str) -> int:
    parsed = build_parser().parse_args(["cluster", *arguments])
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


@pytest.mark.parametrize(
    ("hosts", "rest", "words"),
    [
        ("2", (), "no command to run: give it after --"),
        ("2", ("--",), "no command to run: give it after --"),
        ("1", ("--", "true"), "--hosts 2 or more"),
    ],
)
def test_wrong_use_is_refused(hosts: str, rest: tuple[str, ...], words: str) -> None:
    with pytest.raises(ClusterError, match=words):
        cluster_with("--hosts", hosts, "--rate", "1gbit", *rest)

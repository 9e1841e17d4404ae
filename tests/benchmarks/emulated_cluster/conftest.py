"""Fixtures for tests that start real clusters."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.harness import workers as processes

CLUSTER = [sys.executable, "-P", "-m", "benchmarks.emulated_cluster"]


@pytest.fixture(scope="session")
def cluster_command() -> list[str]:
    """The command, before its options; skips where this machine cannot emulate a cluster."""
    # Processes that torch and MPI have not touched: new namespaces want a process of one thread.
    tried = subprocess.run(
        [*CLUSTER, "--hosts", "2", "--rate", "unlimited", "--", "true"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=clean_environment(),
    )
    if tried.returncode != 0:
        pytest.skip(f"this machine cannot emulate a cluster: {tried.stderr.strip()}")
    return CLUSTER


@pytest.fixture(scope="session")
def cluster_environment() -> dict[str, str]:
    """The environment for it."""
    return clean_environment()


@pytest.fixture(scope="session")
def run_cluster(
    cluster_command: list[str], cluster_environment: dict[str, str]
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a command in a cluster and wait: ``run_cluster("2", "1gbit", "mpirun", "-n", "2", "hostname")``."""

    def run(hosts: str, rate: str, *command: str) -> subprocess.CompletedProcess[str]:
        options = ["--hosts", hosts, "--rate", rate, "--"]
        return subprocess.run(
            [*cluster_command, *options, *command],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            env=cluster_environment,
        )

    return run


def clean_environment() -> dict[str, str]:
    """What a user's shell would have: nothing of a launcher that started the tests, this Python's programs first."""
    launcher = ("PMI_", "PMIX_", "HYDI_", "MPI_", "MPIR_", "OMPI_", "HYDRA_", "UCX_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(launcher)}
    return kept | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


@pytest.fixture(scope="session")
def family() -> Callable[[int], set[int]]:
    """Living processes that descend from one, that one among them, as numbers outside of the cluster."""
    return processes.family

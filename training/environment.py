"""What a run or a benchmark ran on: package versions, hardware and the commit of the source."""

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from windrow.comm.process import usable_cores

__all__ = ["PACKAGES", "describe", "git_commit", "hardware", "package_versions"]

PACKAGES = (
    "windrow",
    "torch",
    "numpy",
    "numba",
    "mpi4py",
    "mpich",
    "dgl",
    "torch-geometric",
    "torchmetrics",
    "torchrec",
    "fbgemm-gpu",
    "fbgemm-gpu-cpu",
    "duckdb",
    "pyarrow",
)
"""The distributions whose versions a run records, where they are installed."""

RESULTS = "benchmarks/results"
"""Folder of a checkout that no program is made from."""


def package_versions() -> dict[str, str]:
    """Versions of Python and of those of `PACKAGES` that are installed. Imports none of them."""
    versions = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions


def hardware() -> dict[str, str | int | list[str]]:
    """The machine: processor model, cores that this process may use, memory in bytes, names of the GPUs."""
    import torch

    return {
        "host": platform.node(),
        "system": platform.platform(),
        "processor": _processor_model(),
        "cores": usable_cores(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "gpus": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())],
    }


def git_commit(folder: Path | None = None) -> str:
    """The full hash of a checkout's commit, with "-modified" where tracked files differ from it; "unknown" without git.

    Results of benchmarks do not count: each benchmark writes one, and the next would be called modified by it.
    """
    place = folder or Path(__file__).resolve().parent
    commit = _git(place, "rev-parse", "--verify", "HEAD")
    if commit is None:
        return "unknown"
    changed = _git(place, "status", "--porcelain", "--untracked-files=no", "--", ":/", f":/!{RESULTS}")
    return f"{commit}-modified" if changed else commit


def describe() -> dict[str, object]:
    """Everything above as one dictionary that JSON can hold: the contents of a run's environment.json."""
    return {"commit": git_commit(), "packages": package_versions(), "hardware": hardware()}


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _processor_model(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    if cpuinfo.is_file():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()

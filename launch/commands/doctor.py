"""``windrow doctor``: say what works on this machine, and what would cure what does not.

Look at Python, PyTorch, MPI and its launcher (two ranks are started), cores, memory, GPUs, the place of compiled
kernels, and optional libraries. Takes some seconds; start it without mpirun.
"""

import argparse
import contextlib
import io
import json
import platform
import shutil
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec

from windrow.comm.process import usable_cores

__all__ = ["CHECKS", "Check", "add_arguments", "examine", "look_at_mpi", "run"]

EXAMPLES = """\
examples:
  windrow doctor
  windrow doctor > doctor.txt

ok: it works; warning: it works, but not well; missing: it does not work. What would cure it stands below.
Exit status: 1 where training cannot work, else 0.
"""
COLUMNS = 100
DEADLINE_S = 120


def add_arguments(_: argparse.ArgumentParser) -> None:
    """It has none."""


def run(_: argparse.Namespace) -> int:
    """Do it."""
    text, works = examine(CHECKS)
    print(text)
    return int(not works)


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the answer."""

    name: str
    """What is looked at."""
    look: Callable[[], str]
    """Says what was found; raises what is wrong: a UserWarning where it works, but not well."""
    cure: str = ""
    """What to do where something is wrong."""
    essential: bool = False
    """Whether training cannot work then."""


def examine(checks: Sequence[Check]) -> tuple[str, bool]:
    """Look at all of it, which takes some seconds.

    Returns:
        Aligned lines of at most 100 columns, with cures; and whether training works.
    """
    lines, works = [], True
    indent = " " * (len("warning  ") + max(len(check.name) for check in checks) + 2)
    for check in checks:
        state, cure = "ok", ""
        try:
            # Some libraries talk while they are imported.
            with warnings.catch_warnings(action="ignore"), contextlib.redirect_stderr(io.StringIO()):
                found = check.look()
        except Exception as error:  # noqa: BLE001 - a library may fail in any way
            state = "warning" if isinstance(error, UserWarning) else "missing"
            found, cure = " ".join(str(error).split()), check.cure
            works = works and not (check.essential and state == "missing")
        head = f"{state:9}{check.name}".ljust(len(indent))
        lines += textwrap.wrap(found, COLUMNS, initial_indent=head, subsequent_indent=indent)
        lines += textwrap.wrap(cure, COLUMNS, initial_indent=f"{indent}-> ", subsequent_indent=f"{indent}   ")
    return "\n".join(lines), works


RANK = """
import json, os
from mpi4py import MPI
from windrow.comm.process import usable_cores
cores = MPI.COMM_WORLD.allgather(usable_cores())
if MPI.COMM_WORLD.rank == 0:
    os.write(1, json.dumps([MPI.Get_library_version().partition("\\n")[0], cores]).encode())
"""


def look_at_mpi() -> str:
    """Start two ranks by ``mpirun``: which MPI they have, and how many cores each.

    Raises:
        UserWarning: there is none, so that only one rank can train, or ranks have less than their share of the cores.
        RuntimeError: they do not start, or do not see each other.
    """
    launcher = shutil.which("mpirun")
    if launcher is None or find_spec("mpi4py") is None:
        absent = "no mpirun on the PATH" if launcher is None else "no mpi4py"
        raise UserWarning(f"{absent}: only one rank can train, or ranks of torchrun")
    printed = _output_of(launcher, "-n", "2", sys.executable, "-P", "-c", RANK)
    if '["' not in printed:
        raise RuntimeError(f"ranks of {launcher} do not print")
    # Two jobs of one rank each may print into one line.
    library, cores = json.JSONDecoder().raw_decode(printed[printed.index('["') :])[0]
    library = " ".join(library.split())
    if len(cores) != 2:
        raise RuntimeError(f"two ranks of {launcher} do not see each other: mpi4py is for another MPI, {library}")
    if min(cores) < usable_cores() // 2:
        raise UserWarning(
            f"{launcher} binds ranks to {cores[0]} and {cores[1]} cores: mpirun --bind-to none shares all"
        )
    return f"two ranks see each other, with {cores[0]} and {cores[1]} cores to use; {library}, {launcher}"


def _look_at_machine() -> str:
    from windrow.partition.options import available_memory_bytes
    from windrow.training.terminal import byte_size

    cores, memory = usable_cores(), available_memory_bytes()
    threads = f"{cores} cores: {cores} threads for one rank, {max(1, cores // 2)} for each of two"
    return threads if memory is None else f"{threads}; {byte_size(memory)} of memory are free"


def _look_at_torch() -> str:
    import torch

    return f"{torch.__version__}, for {f'CUDA {torch.version.cuda}' if torch.version.cuda else 'CPUs only'}"


def _look_at_gpus() -> str:
    import torch

    if not torch.cuda.is_available():
        raise RuntimeError("none that PyTorch can use")
    return ", ".join(torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count()))


def _look_at_kernels() -> str:
    from windrow.training.dropout_kernels import drop_columns

    return f"kept in {drop_columns.stats.cache_path} and the like"


def _look_at_fbgemm() -> str:
    import torch

    found = _versions("fbgemm_gpu")
    torch.ops.fbgemm.asynchronous_complete_cumsum(torch.tensor([1, 2]))
    return found


def _versions(*modules: str) -> str:
    return ", ".join(f"{name} {import_module(name).__version__}" for name in modules)


def _output_of(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    if done.returncode:
        raise RuntimeError(textwrap.shorten(done.stderr, 400) or f"{command[0]} ended with status {done.returncode}")
    return done.stdout


CHECKS = (
    Check("Python", lambda: f"{platform.python_version()}, {sys.executable}"),
    Check("machine", _look_at_machine),
    Check("MPI", look_at_mpi, "mpirun and mpi4py of one MPI: pip install windrow[mpich], or windrow[mpi] for that of a "
          "cluster, built anew by pip install --force-reinstall --no-binary mpi4py mpi4py", essential=True),
    Check("PyTorch", _look_at_torch, "pip install torch", essential=True),
    Check("GPU", _look_at_gpus, 'for run.device = "cuda": an NVIDIA GPU, its driver, and PyTorch for CUDA'),
    Check("kernels", _look_at_kernels, "pip install numba; NUMBA_CACHE_DIR=FOLDER, where no folder can be written to",
          essential=True),
    Check("libraries", lambda: _versions("numpy", "matplotlib", "tensorboard", "torchmetrics", "tqdm"),
          "pip install windrow, with what it depends on", essential=True),
    Check("dgl", lambda: _versions("dgl"), "for METIS and graphs of DGL: pip install windrow[dgl]"),
    Check("pyg", lambda: _versions("torch_geometric"), "for graphs of PyG: pip install windrow[pyg]"),
    Check("pyarrow", lambda: _versions("pyarrow"), "for CSV and Parquet: pip install windrow[parquet]"),
    Check("duckdb", lambda: _versions("duckdb"), "for windrow prepare: pip install windrow[recsys]"),
    Check("fbgemm", _look_at_fbgemm, "for embedding tables: pip install fbgemm-gpu-cpu, or fbgemm-gpu for CUDA, never "
          "both, in the version for this PyTorch"),
    Check("torchrec", lambda: _versions("torchrec"), "for export to TorchRec: pip install --no-deps torchrec"),
    Check("plotly", lambda: _versions("plotly", "jinja2"), "for windrow report: pip install windrow[report]"),
)  # fmt: skip
"""In the order in which they are shown."""

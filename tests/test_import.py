"""Importing the library is quick, silent, and needs none of the optional libraries."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = [
    name
    for name in ("comm", "partition", "caching", "training", "gnn", "recsys", "launch")
    if (ROOT / name).is_dir()
]
MODULES = sorted(
    "windrow." + ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for folder in FOLDERS
    for path in (ROOT / folder).rglob("*.py")
    if not path.name.startswith("__")
)

OPTIONAL_LIBRARIES = {
    "dgl",
    "duckdb",
    "fbgemm_gpu",
    "matplotlib",
    "mpi4py",
    "plotly",
    "pyarrow",
    "safetensors",
    "tensorboard",
    "torch_geometric",
    "torchmetrics",
    "torchrec",
}
"""Not tqdm, which torch imports itself."""

ADAPTERS = {"windrow.comm.mpi_world", "windrow.recsys.tables.fbgemm", "windrow.recsys.torchrec_adapter"}
"""Modules whose whole purpose is one optional library."""

TIME_BUDGET = 1.5
"""Importing windrow.gnn may take this many times what torch and numba take, which it cannot do without."""

ATTEMPTS = 3


def run(program: str) -> str:
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return done.stdout


@pytest.mark.parametrize("module", [f"windrow.{folder}" for folder in FOLDERS])
def test_package_pulls_in_no_optional_library(module):
    loaded = set(run(f"import sys; import {module}; print(*sys.modules)").split())
    assert {name.partition(".")[0] for name in loaded}.isdisjoint(OPTIONAL_LIBRARIES)


def test_no_module_needs_an_optional_library():
    """Every module but the adapters imports where none of them is installed."""
    modules = [module for module in MODULES if module not in ADAPTERS]
    # None in sys.modules makes an import fail as if the library were absent.
    run(
        f"import importlib, sys\nsys.modules.update(dict.fromkeys({sorted(OPTIONAL_LIBRARIES)!r}))\n"
        f"for module in {modules!r}:\n    importlib.import_module(module)"
    )


def test_import_prints_nothing_and_starts_no_thread():
    program = "import threading; before = threading.active_count(); import windrow.launch.cli\n"
    assert not run(program + "assert threading.active_count() == before")


def test_import_time_is_within_budget():
    program = """
from time import process_time
import torch, numba
before = process_time()
import windrow.gnn
print(process_time() / before)
"""
    # The best of several: whatever else runs on the machine only ever adds time.
    assert min(float(run(program)) for _ in range(ATTEMPTS)) <= TIME_BUDGET

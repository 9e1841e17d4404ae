"""Importing the library is quick, silent, and needs none of the optional libraries."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("comm", "partition", "caching", "training", "gnn", "recsys", "launch")
MODULES = sorted(
    "windrow." + ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for folder in FOLDERS
    for path in (ROOT / folder).rglob("*.py")
    if not path.name.startswith("__")
)

OPTIONAL_LIBRARIES = [
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
    "triton",
]
"""Not tqdm, which torch imports itself."""

ADAPTERS = {
    "windrow.comm.mpi_world",
    "windrow.comm.quantize_triton",
    "windrow.recsys.tables.fbgemm",
    "windrow.recsys.tables.robe_triton",
    "windrow.recsys.torchrec_adapter",
}
"""Modules whose whole purpose is one optional library."""

TIME_BUDGET = 1.5
"""Importing windrow.gnn may take this many times what torch and numba take, which it cannot do without."""

ATTEMPTS = 3


def run(program: str) -> str:
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return done.stdout


def test_every_module_imports_without_optional_libraries_words_and_threads():
    modules = [module for module in MODULES if module not in ADAPTERS]
    # None in sys.modules makes an import fail as if the library were absent.
    printed = run(
        "import importlib, sys, threading\n"
        f"sys.modules.update(dict.fromkeys({OPTIONAL_LIBRARIES!r}))\n"
        f"for module in {modules!r}:\n    importlib.import_module(module)\n"
        "assert threading.active_count() == 1"
    )
    assert not printed


def test_import_time_is_within_budget():
    program = """
from time import process_time
import torch, numba
before = process_time()
import windrow.gnn
print(process_time() / before)
"""
    # Once in several times is enough: whatever else runs on the machine only ever adds time.
    assert any(float(run(program)) <= TIME_BUDGET for _ in range(ATTEMPTS))

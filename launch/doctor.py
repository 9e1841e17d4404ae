"""What works on this machine, and what would cure what does not: the checks of ``windrow doctor``.

Libraries are tried in another process, so that one that crashes when it is imported is named like any other.
"""

import json
import os
import platform
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Literal

from windrow.partition.options import available_memory_bytes
from windrow.training.environment import usable_cores
from windrow.training.terminal import byte_size

__all__ = ["Finding", "Library", "State", "describe_findings", "examine", "mpi_finding", "try_libraries"]

WIDTH = 100
DEADLINE_S = 120.0
LITTLE_MEMORY_BYTES = 2 << 30

State = Literal["ok", "warning", "missing"]
"""It works; it works, but not well; it does not."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """What one check found."""

    what: str
    """What was looked at."""
    state: State
    """Whether it works."""
    found: str
    """Its version, or what is wrong."""
    cure: str = ""
    """What to do where it does not work."""
    essential: bool = False
    """Whether training cannot work where it is missing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Library:
    """Something that Python code can try."""

    name: str
    """What it is called."""
    code: str
    """Sets ``found`` to a version, say; an error means that it does not work."""
    cure: str
    """How to get it, and what it is for."""
    essential: bool = False
    """Whether training cannot work without."""


def _version_of(module: str) -> str:
    return f"import {module}; found = {module}.__version__"


LIBRARIES = (
    Library(
        name="PyTorch",
        code="import torch; found = f'{torch.__version__}, for ' + "
        "(f'CUDA {torch.version.cuda}' if torch.version.cuda else 'CPUs only')",
        cure="pip install torch",
        essential=True,
    ),
    Library(
        name="GPU",
        code="import torch; assert torch.cuda.is_available(), 'none that PyTorch can use'\n"
        "found = ', '.join(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))",
        cure='for run.device = "cuda": an NVIDIA GPU, its driver, and PyTorch for CUDA',
    ),
    Library(
        name="compiled kernels",
        code="from windrow.training.dropout_kernels import drop_columns\n"
        "found = f'kept in {drop_columns.stats.cache_path} and beside it'",
        cure="pip install numba; set NUMBA_CACHE_DIR to a folder that can be written to",
        essential=True,
    ),
    Library(
        name="what else trains",
        code="import matplotlib, numpy, tensorboard, tomli_w, torchmetrics, tqdm; found = 'numpy ' + numpy.__version__",
        cure="pip install windrow again, with what it depends on",
        essential=True,
    ),
    Library(name="dgl", code=_version_of("dgl"), cure="pip install windrow[dgl], for METIS and graphs of DGL"),
    Library(name="pyg", code=_version_of("torch_geometric"), cure="pip install windrow[pyg], for graphs of PyG"),
    Library(name="pyarrow", code=_version_of("pyarrow"), cure="pip install windrow[parquet], for CSV and Parquet"),
    Library(name="duckdb", code=_version_of("duckdb"), cure="pip install windrow[recsys], for windrow prepare"),
    Library(
        name="fbgemm kernels",
        code="import fbgemm_gpu, torch\n"
        "torch.ops.fbgemm.asynchronous_complete_cumsum(torch.tensor([1, 2]))\n"
        "found = fbgemm_gpu.__version__",
        cure="pip install fbgemm-gpu-cpu, or fbgemm-gpu for CUDA (one of them), of PyTorch's age: embedding tables",
    ),
    Library(
        name="torchrec",
        code=_version_of("torchrec"),
        cure="pip install --no-deps torchrec, of FBGEMM's age, for windrow export --format torchrec",
    ),
    Library(
        name="plotly",
        code="import jinja2; " + _version_of("plotly"),
        cure="pip install windrow[report], for windrow report",
    ),
)

TRY = """
import json, os, sys
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # what libraries print is no answer
for code in json.load(sys.stdin):
    names = {}
    try:
        exec(code, names)
        answer = [True, str(names["found"])]
    except BaseException as error:
        answer = [False, str(error) or type(error).__name__]
    print(json.dumps(answer), file=answers, flush=True)
"""


def try_libraries(libraries: Sequence[Library]) -> list[Finding]:
    """Try each of them: how it went, in the same order."""
    answers: list[tuple[bool, str]] = []
    while len(answers) < len(libraries):
        codes = [library.code for library in libraries[len(answers) :]]
        done = _run([sys.executable, "-P", "-c", TRY], given=json.dumps(codes))
        answers += map(json.loads, done.stdout.splitlines())
        if len(answers) < len(libraries):
            answers.append((False, f"ended Python with status {done.returncode}"))
    return [
        Finding(
            what=library.name,
            state="ok" if works else "missing",
            found=found,
            cure="" if works else library.cure,
            essential=library.essential,
        )
        for library, (works, found) in zip(libraries, answers, strict=True)
    ]


RANK = """
import json, os
from mpi4py import MPI
cores = MPI.COMM_WORLD.allgather(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0)
if MPI.COMM_WORLD.rank == 0:
    print(json.dumps([" ".join(MPI.Get_library_version().splitlines()[0].strip(chr(0)).split()), cores]), flush=True)
"""


def mpi_finding() -> Finding:
    """Whether ``mpirun -n 2`` starts two ranks of one job, and with how many cores each."""
    other = "pip install windrow[mpich], or windrow[mpi] for the MPI of a cluster; torchrun works without"
    launcher = shutil.which("mpirun")
    if find_spec("mpi4py") is None or launcher is None:
        what = "mpi4py is not installed" if launcher else "no mpirun on the PATH"
        return Finding(what="MPI", state="warning", found=f"{what}: one rank only", cure=other)
    done = _run([launcher, "-n", "2", sys.executable, "-P", "-c", RANK])
    answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    if done.returncode or not answers:
        said = " ".join(done.stderr.split()) or f"status {done.returncode}"
        found = f"{launcher} -n 2 does not work: {textwrap.shorten(said, 300)}"
        return Finding(what="MPI", state="missing", found=found, cure=other, essential=True)
    library, cores = answers[0]
    if len(cores) != 2:
        return Finding(
            what="MPI",
            state="missing",
            found=f"{launcher} is of another MPI than mpi4py ({library}): its two ranks do not see each other",
            cure="use the mpirun of that MPI (first on the PATH), or build mpi4py for this one: "
            "pip install --force-reinstall --no-binary mpi4py mpi4py",
            essential=True,
        )
    fair = max(1, usable_cores() // 2)
    bound = 0 < min(cores) < fair
    return Finding(
        what="MPI",
        state="warning" if bound else "ok",
        found=f"{library}, {launcher}: 2 ranks, {cores[0]} and {cores[1]} cores are theirs to use",
        cure=f"mpirun --bind-to none, so that each of two ranks computes on {fair} cores" if bound else "",
    )


def examine() -> list[Finding]:
    """All checks; takes some seconds."""
    cores, memory = usable_cores(), available_memory_bytes()
    is_little = memory is not None and memory < LITTLE_MEMORY_BYTES
    python = f"{platform.python_version()}, {sys.executable}"
    threads = f"{cores} usable: {cores} threads of one rank, {max(1, cores // 2)} of each of two (run.threads)"
    cluster = _run([sys.executable, "-P", "-m", "windrow.launch", "cluster", "--hosts=2", "--rate=1gbit", "--", "true"])
    return [
        Finding(what="Python", state="ok", found=python),
        mpi_finding(),
        Finding(what="cores", state="ok", found=threads),
        Finding(
            what="memory",
            state="warning" if is_little else "ok",
            found="unknown" if memory is None else f"{byte_size(memory)} free",
            cure="end other programs, or train smaller tables and batches" if is_little else "",
        ),
        *try_libraries(LIBRARIES),
        Finding(
            what="windrow cluster",
            state="missing" if cluster.returncode else "ok",
            found=" ".join(cluster.stderr.removeprefix("windrow: error:").split()) if cluster.returncode else "works",
            cure="it emulates hosts; nothing else needs it" if cluster.returncode else "",
        ),
    ]


def describe_findings(findings: Sequence[Finding]) -> str:
    """Aligned lines of at most 100 columns: state, what, and what was found; the cure below."""
    widths = max(len(finding.state) for finding in findings), max(len(finding.what) for finding in findings)
    lines: list[str] = []
    for finding in findings:
        head = f"{finding.state:{widths[0]}}  {finding.what:{widths[1]}}  "
        lines += textwrap.wrap(finding.found, WIDTH, initial_indent=head, subsequent_indent=" " * len(head))
        if finding.cure:
            lines += textwrap.wrap(
                finding.cure, WIDTH, initial_indent=" " * len(head) + "-> ", subsequent_indent=" " * len(head) + "   "
            )
    return "\n".join(lines)


def _run(command: Sequence[str], *, given: str = "") -> subprocess.CompletedProcess[str]:
    """Run a program; one that does not end in time has failed."""
    try:
        return subprocess.run(
            command, input=given, capture_output=True, text=True, timeout=DEADLINE_S, check=False, env=os.environ
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 1, "", f"it did not end within {DEADLINE_S:.0f} s")

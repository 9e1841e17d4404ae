"""The frame of every script in benchmarks/: its options, its workers, its result and its closing line."""

import argparse
import hashlib
import json
import os
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks.harness.result import BenchmarkResult, Findings, check_writable, result_file_name, write_result
from benchmarks.harness.workers import DEFAULT_DEADLINE_S, emulated_cluster, family, mpirun, run_worker
from windrow.comm.errors import WindrowError
from windrow.comm.launcher import launched_rank
from windrow.partition.atomic_writes import open_atomically
from windrow.training.environment import git_commit, hardware, package_versions
from windrow.training.terminal import table

__all__ = ["MissingDataError", "Program", "conclude", "run_benchmark"]

Work = Callable[[Mapping[str, Any]], object]
"""What a worker does: takes its task, returns what JSON can hold. On several ranks, what rank 0 returns counts."""

AddOptions = Callable[[argparse.ArgumentParser], None]


class MissingDataError(WindrowError):
    """The data that a benchmark needs are not on this machine: it is skipped."""


@dataclass(frozen=True, kw_only=True)
class Program:
    """A benchmark that is running."""

    script: Path
    """Its file."""
    options: argparse.Namespace
    """What was said on the command line; the benchmark's own options are in it."""
    _numbers: Iterator[int] = field(default_factory=count, init=False)
    """Of workers."""

    @property
    def name(self) -> str:
        """Name of the file, without ".py"."""
        return self.script.stem

    @property
    def short(self) -> bool:
        """Whether the smaller version was asked for: under 3 minutes on two cores."""
        return bool(self.options.short)

    @property
    def hostfile(self) -> Path | None:
        """Names of the machines of a real cluster; None: ranks are started on this machine."""
        hostfile: Path | None = getattr(self.options, "hostfile", None)
        return hostfile

    @property
    def result_path(self) -> Path:
        """Where the result goes: ``--save``, else the folder results/ beside the script."""
        saved: Path | None = self.options.save
        return saved or self.script.parent / "results" / result_file_name(self.name, self.part, short=self.short)

    @property
    def part(self) -> str:
        """What ``--only`` named; empty: all parts."""
        return getattr(self.options, "only", None) or ""

    def chosen(self, parts: Sequence[str], *, short: int) -> Sequence[str]:
        """Which of the parts that can be measured are: the one that was named, else all, of the short form the first.

        Raises:
            MissingDataError: the data of the one that was named are not here, or of any.
        """
        found = [part for part in parts if part == self.part] if self.part else parts[: short if self.short else None]
        if not found:
            raise MissingDataError(f"there are no data of {self.part or 'any part'} here: see --data in --help")
        return found

    def on_ranks(
        self,
        size: int,
        task: Mapping[str, Any],
        *,
        rate: str | None = None,
        environment: Mapping[str, str] | None = None,
        deadline_s: float = DEFAULT_DEADLINE_S,
    ) -> Any:
        """Run this script's `work` on MPI ranks.

        Args:
            size: number of ranks.
            task: what `work` is called with, after a round trip through JSON.
            rate: start each rank on an emulated host of its own, with a link of this rate ("1gbit", or one rate
                for each host with commas between them); None: on this machine, or those of ``--hostfile``.
            environment: variables that are set besides those of this process.
            deadline_s: seconds that the job may take.

        Returns:
            What `work` returned on rank 0, after a round trip through JSON.

        Raises:
            ValueError: a rate, where the user named real machines: their links cannot be shaped.
            WindrowError: the job failed or was late.
        """
        if rate is not None and self.hostfile is not None:
            raise ValueError("an emulated cluster was asked for, but --hostfile names a real one")
        launcher = mpirun(size, hostfile=self.hostfile)
        if rate is not None:
            launcher = [*emulated_cluster(size, rate), *launcher]
        run = partial(
            run_worker,
            self.script,
            task,
            launcher=launcher,
            environment=environment,
            folder=None if self.hostfile is None else Path.cwd(),
            deadline_s=deadline_s,
        )
        said = f"{size} rank(s){f' at {rate}' if rate else ''}: {json.dumps(task)}"
        return self._found(run, said, next(self._numbers))

    def in_process(self, task: Mapping[str, Any], *, threads: int, deadline_s: float = DEFAULT_DEADLINE_S) -> Any:
        """Run this script's `work` in a fresh process, where OpenMP and MKL have their threads from the start.

        Returns and raises as `on_ranks`.
        """
        return self.in_processes([task], threads=threads, deadline_s=deadline_s)[0]

    def in_processes(
        self, tasks: Sequence[Mapping[str, Any]], *, threads: int, deadline_s: float = DEFAULT_DEADLINE_S
    ) -> list[Any]:
        """Do as `in_process` for each task, as many at a time as have a core for each thread: each slows the others.

        Returns and raises as `on_ranks`, in the order of the tasks. The first that fails ends those that run.
        """
        limits = {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
        with ThreadPoolExecutor(max(1, len(os.sched_getaffinity(0)) // threads)) as pool:
            waited = []
            for task in tasks:
                run = partial(run_worker, self.script, task, environment=limits, deadline_s=deadline_s)
                said = f"a process with {threads} thread(s): {json.dumps(task)}"
                waited.append(pool.submit(self._found, run, said, next(self._numbers)))
            try:
                for done in as_completed(waited):
                    done.result()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                for process in family(os.getpid()) - {os.getpid()}:
                    with suppress(ProcessLookupError):  # It has just ended.
                        os.kill(process, signal.SIGTERM)
                raise
        return [one.result() for one in waited]

    def _found(self, run: Callable[[], Any], said: str, number: int) -> Any:
        """What a worker measures, kept for ``--resume`` until the result is written."""
        # By number: tasks have paths of this run in them, and come in one order.
        file = self.kept / f"{number}.json" if self.options.resume else None
        if file is not None and file.exists():
            self._say(f"taken from {file}")
            return json.loads(file.read_text("utf-8"))
        self._say(said)
        found = run()
        if file is None:
            return found
        with open_atomically(file) as kept:
            kept.write(json.dumps(found).encode())
        return found

    @cached_property
    def kept(self) -> Path:
        """Where ``--resume`` keeps what this commit measured on this machine."""
        about = repr((git_commit(self.script.parent), hardware_line(), sys.argv[1:]))
        name = f"{self.name}-{hashlib.blake2b(about.encode(), digest_size=6).hexdigest()}"
        folder = self.script.parents[1] / "build" / "benchmarks" / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _say(self, what: str) -> None:
        """Tell who waits what is being measured, beside the output that other programs read."""
        print(f"{self.name}: {what}", file=sys.stderr, flush=True)


def run_benchmark(
    script: str,
    description: str | None,
    measure: Callable[[Program], Findings],
    *,
    work: Work | None = None,
    ranks: bool = False,
    parts: Sequence[str] = (),
    add_options: AddOptions | None = None,
) -> None:
    """Be a benchmark: read the options, measure, print, write the result. The last line of output is JSON.

    Where the script was started as a worker, do the worker's task instead and hand over what it returns.

    Args:
        script: the benchmark's ``__file__``.
        description: its ``__doc__``, for ``--help``.
        measure: measures everything; called in the process that the user started. It may raise `MissingDataError`.
        work: does a task in a process that `Program.on_ranks` or `Program.in_process` started.
        ranks: whether `measure` starts ranks, so that ``--hostfile`` means something.
        parts: those that ``--only`` can name one of, where the whole takes hours; `Program.chosen`.
        add_options: adds the benchmark's own options to the parser.
    """
    parser = _parser(description or "", ranks=ranks, has_workers=work is not None)
    if parts:
        only = "measure this part alone, with a result of its own"
        parser.add_argument("--only", choices=parts, help=only)
    if add_options is not None:
        add_options(parser)
    options = parser.parse_args()
    if work is not None and options.task is not None:
        _serve(work, options)
        return
    # Else an end asked for from outside would leave the workers running: `run_command` ends them on its way out.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        program = Program(script=Path(script).resolve(), options=options)
        check_writable(program.result_path)  # before hours are spent
        conclude(program, measure(program))
    except MissingDataError as missing:
        print(f"{Path(script).name}: skipped: {missing}")
    except WindrowError as error:
        print(f"{Path(script).name}: error: {error}", file=sys.stderr)
        sys.exit(2)


def conclude(program: Program, findings: Findings) -> None:
    """Print the comparisons and tables, write the result and print the closing line of JSON. Not called on ranks.

    Raises:
        StoreError: the result cannot be written.
    """
    for setting, comparison in findings.comparisons.items():
        print(f"\n{setting} (seconds per {comparison.per})")
        print(table(comparison.rows()))
    for title, rows in findings.tables.items():
        print(f"\n{title}")
        print(table(rows.to_rows()))
    result = BenchmarkResult(
        figures={key: float(value) for key, value in findings.figures.items()},
        aims=findings.aims,
        comparisons=findings.comparisons,
        tables=findings.tables,
        matrices=findings.matrices,
        benchmark=program.name,
        form="short" if program.short else "full",
        part=program.part,
        date=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        # Whole paths are those of one machine.
        command=shlex.join(
            ["python", f"benchmarks/{program.script.name}"]
            + [Path(word).name if Path(word).is_absolute() else word for word in sys.argv[1:] if word != "--resume"]
        ),
        commit=git_commit(program.script.parent),
        hardware=hardware_line(),
        packages=package_versions(),
    )
    write_result(result, program.result_path)
    if program.options.resume:
        shutil.rmtree(program.kept, ignore_errors=True)
    print(result.closing_line(), flush=True)


def _parser(description: str, *, ranks: bool, has_workers: bool) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.set_defaults(resume=False)
    parser.add_argument("--short", action="store_true", help="a smaller version: under 3 minutes on two cores")
    parser.add_argument(
        "--save",
        type=Path,
        metavar="FILE",
        help="write the result to this file; default: results/NAME.json beside the script, NAME-short.json if short",
    )
    if ranks:
        parser.add_argument(
            "--hostfile",
            type=Path,
            metavar="FILE",
            help="start ranks on the machines that this file names, one a line; default: all on this machine",
        )
    if has_workers:
        parser.add_argument(
            "--resume",
            action="store_true",
            help="keep what has been measured in build/benchmarks, and go on where the same command was stopped",
        )
        parser.add_argument("--task", type=json.loads, help=argparse.SUPPRESS)
        parser.add_argument("--output", type=Path, help=argparse.SUPPRESS)
    return parser


def _serve(work: Work, options: argparse.Namespace) -> None:
    found = work(options.task)
    if launched_rank() == 0:
        options.output.write_text(json.dumps(found), "utf-8")


def hardware_line() -> str:
    """The machine in one line, without its host name: what a published benchmark result states."""
    machine = hardware()
    memory_gib = int(str(machine["memory_bytes"])) / 2**30
    parts = [f"{machine['cores']} cores of {machine['processor']}", f"{memory_gib:.0f} GiB memory"]
    gpus = machine["gpus"]
    if isinstance(gpus, list) and gpus:
        parts.append(", ".join(f"{gpus.count(name)} x {name}" for name in dict.fromkeys(gpus)))
    return ", ".join(parts)

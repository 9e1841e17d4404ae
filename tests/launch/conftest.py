"""Fixtures: data small enough to train on in no time, made-up run folders."""

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from windrow.training.journal import EpochRecord
from windrow.training.run_folder import create_run_folder, write_json

MAIN_AND_FREE = """
import resource
import sys
from pathlib import Path
import numpy as np
from windrow.launch.cli import main

status, statistics = main(sys.argv[1:]), Path("/proc/self/statm")
if status == 0 and statistics.exists():
    pages_held = lambda: int(statistics.read_text().split()[1])
    large = np.ones(64 << 20, np.uint8)
    before = pages_held()
    del large
    if pages_held() > before - (32 << 20) // resource.getpagesize():
        sys.exit("freed memory does not go back to the system")
sys.exit(status)
"""

STAGES = {"graph": ("sample", "fetch", "forward", "backward", "evaluate"), "log": tuple("abcdefghij")}


@pytest.fixture
def windrow_that_frees() -> list[str]:
    """The command ``windrow``, which fails where large memory that it frees stays with it."""
    return [sys.executable, "-P", "-c", MAIN_AND_FREE]


@pytest.fixture
def make_run(make_run_in: Callable[..., Path], tmp_path: Path) -> Callable[..., Path]:
    """Write a run folder: ``make_run("graph", "one", ranks=2, epochs=3, old=False)``."""
    return partial(make_run_in, tmp_path)


@pytest.fixture(scope="session")
def make_run_in() -> Callable[..., Path]:
    """The same in a folder of one's own, the first argument."""

    def make(
        parent: Path, kind: str, name: str, /, *, ranks: int = 2, epochs: int = 3, old: bool = False, **recipe: Any
    ) -> Path:
        path = parent / name
        folder = create_run_folder(path, {**_run_recipe(kind, ranks), **recipe})
        lines = [json.dumps(asdict(_record(kind, epoch))) for epoch in range(1, epochs + 1)]
        folder.metrics_file.write_text("".join(f"{line}\n" for line in lines))
        if not old:
            rank_lines = [json.dumps(_ranks(kind, epoch, ranks)) for epoch in range(1, epochs + 1)]
            folder.ranks_file.write_text("".join(f"{line}\n" for line in rank_lines))
            placement = _graph_placement(ranks) if kind == "graph" else _log_placement(ranks)
            write_json(folder.placement_file, placement)
        write_json(folder.summary_file, {"metric": "roc_auc"})
        return path

    return make


def _run_recipe(kind: str, ranks: int) -> dict[str, Any]:
    if kind == "graph":
        data: dict[str, Any] = {"graph": {"path": "graph.npz"}, "partition": {"num_parts": ranks}}
    else:
        data = {"log": {"paths": ["a.csv", "b.csv"]}, "tables": {"dim": 8}}
    return {"name": f"{kind}-recipe", **data, "model": {"kind": "m"}, "training": {"epochs": 3}}


def _record(kind: str, epoch: int) -> EpochRecord:
    better = kind == "graph"
    return EpochRecord(
        epoch=epoch,
        step=10 * epoch,
        loss=1 / epoch,
        learning_rate=0.01,
        metric="roc_auc" if better else "normalised_entropy",
        higher_is_better=better,
        validation=0.7 + 0.01 * epoch if better else 10 / epoch,
        test=0.6 + 0.01 * epoch if better else 11 / epoch,
        figures={"samples per second": 100.0 * epoch},
        seconds=2.0 / epoch,
        stage_seconds=dict.fromkeys(STAGES[kind], 0.2 / epoch),
        rows_fetched=1000,
        bytes_fetched=64000,
    )


def _ranks(kind: str, epoch: int, ranks: int) -> dict[str, Any]:
    """Rank p sends 1000 (p + 1) bytes to each other rank in each of two stages, and finds p of p + 3 rows."""
    return {
        "epoch": epoch,
        "ranks": [
            {
                "host": f"host{rank}",
                "seconds": 1.9 / epoch,
                "stage_seconds": dict.fromkeys(STAGES[kind], 0.1 / epoch),
                "bytes_sent": {
                    stage: [0 if peer == rank else 1000 * (rank + 1) for peer in range(ranks)]
                    for stage in ("features: ids", "features: rows")
                },
                "bytes_received": {},
                "waiting_seconds": {"features: rows": 0.3 / epoch, "gradients": 0.06 / epoch},
                "bytes_reduced": 4096,
                "rows_local": rank,
                "rows_remote": 3,
                "peak_memory_bytes": (rank + 1) << 28,
                "peak_gpu_memory_bytes": 0,
            }
            for rank in range(ranks)
        ],
    }


def _graph_placement(ranks: int) -> dict[str, Any]:
    one = {"vertices": 100, "train_vertices": 50, "edges": 1000, "feature_bytes": 4000}
    return {"kind": "graph", "ranks": [one] * ranks}


def _log_placement(ranks: int) -> dict[str, Any]:
    """Table 0 is cut by rows, table 1 is copied, table 2 is whole on the last rank."""

    def shard(rank: int, first: int, rows: int) -> dict[str, int]:
        return {"rank": rank, "first_row": first, "rows": rows, "first_column": 0, "columns": 8, "bytes": 32 * rows}

    shards = {
        "row-wise": [shard(rank, 100 * rank, 100) for rank in range(ranks)],
        "replicated": [shard(rank, 0, 10) for rank in range(ranks)],
        "table-wise": [shard(ranks - 1, 0, 50)],
    }
    tables = [
        {"name": f"table {number}", "rows": rows, "dim": 8, "bytes": 32 * rows, "plan": plan, "shards": shards[plan]}
        for number, (plan, rows) in enumerate({"row-wise": 100 * ranks, "replicated": 10, "table-wise": 50}.items())
    ]
    return {"kind": "log", "world_size": ranks, "tables": tables}

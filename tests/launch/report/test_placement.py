"""windrow.launch.report.placement: the right picture for each kind of run, and clear words about a damaged file."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from windrow.comm.errors import StoreError
from windrow.launch.report.placement import placement_section
from windrow.launch.report.read_run import ReportedRun

RunOf = Callable[..., ReportedRun]


def test_each_kind_has_its_picture(run_of: RunOf) -> None:
    graph, log = placement_section([run_of("graph", "one"), run_of("log", "two")]).panels
    assert graph.views[0].label == "shares"
    assert log.views[0].label == "sized by bytes"


def test_an_old_run_says_why_there_is_none(run_of: RunOf) -> None:
    (panel,) = placement_section([run_of("graph", "one", old=True)]).panels
    assert "no placement.json" in panel.missing


@pytest.mark.parametrize(
    "damaged",
    [
        {},
        {"kind": "cube"},
        {"kind": "graph"},
        {"kind": "graph", "ranks": [{"vertices": 1}]},
        {
            "kind": "graph",
            "ranks": [{"vertices": "many", "train_vertices": 1, "edges": 1, "feature_bytes": 1}],
        },
        {"kind": "log", "world_size": 2, "tables": [7]},
        {"kind": "log", "world_size": 2, "tables": [{"name": "t"}]},
        {
            "kind": "log",
            "world_size": 1,
            "tables": [
                {
                    "name": "t",
                    "bytes": 1,
                    "plan": "x",
                    "rows": 1,
                    "dim": 1,
                    "shards": [
                        {"rank": 5, "first_row": 0, "rows": 1, "first_column": 0, "columns": 1, "bytes": 1}
                    ],
                }
            ],
        },
        {
            "kind": "log",
            "world_size": 1,
            "tables": [{"name": "t", "bytes": 1, "plan": "x", "rows": 1, "dim": 1, "shards": [{"rank": 5}]}],
        },
    ],
    ids=str,
)
def test_a_damaged_file_is_named(run_of: RunOf, damaged: dict[str, Any]) -> None:
    run = replace(run_of("log", "one"), placement=damaged)
    with pytest.raises(StoreError, match=r"placement.json: .*Remove the file to go without it"):
        placement_section([run])

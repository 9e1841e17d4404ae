"""windrow.recsys.log.clustering.cluster_log: what is refused before anything is read."""

from pathlib import Path
from typing import Any

import pytest

from windrow.comm.errors import RecipeError
from windrow.recsys.log.clustering.cluster_log import ClusterOptions

GOOD: dict[str, Any] = {"inputs": (Path("a"),), "output": Path("b"), "by": "session", "time": "at"}


def test_times_are_needed_to_sort_alone() -> None:
    assert ClusterOptions(**GOOD).sort
    assert not ClusterOptions(**GOOD | {"time": "", "sort": False}).sort


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"inputs": ()}, "no log is named"),
        ({"by": ""}, "give --by"),
        ({"time": ""}, "--no-sort"),
        ({"sort": False}, "--time at orders .*, and --no-sort .*: give one"),
        ({"files": 0}, "files = 0: expected at least 1"),
        ({"files": 10**6}, "files = 1000000: expected at most 100000"),
        ({"row_group_rows": -1}, "row_group_rows = -1: expected at least 1"),
        ({"memory_bytes": 1 << 20}, "memory_bytes = 1048576: expected at least 268435456"),
    ],
)
def test_contradictions_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(RecipeError, match=words):
        ClusterOptions(**GOOD | changes)

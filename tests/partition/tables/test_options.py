"""windrow.partition.tables.planners."""

import pytest

from windrow.comm.errors import RecipeError
from windrow.partition.tables.planners import PlanOptions


def test_defaults_are_fine() -> None:
    assert PlanOptions().planner == "greedy_size"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"planner": "best"}, 'planner = "best": expected one of round_robin, greedy_size'),
        ({"rank_memory_bytes": -1}, "rank_memory_bytes = -1: expected 0 or more"),
        ({"replicate_below_bytes": -1}, "replicate_below_bytes = -1: expected 0 or more"),
    ],
)
def test_nonsense_is_refused(changes: dict, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        PlanOptions(**changes)

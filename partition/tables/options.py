"""The recipe section that says where embedding tables live."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from windrow.comm.errors import RecipeError

__all__ = ["PlanOptions", "PlannerName"]

PlannerName = Literal[
    "round_robin",
    "greedy_size",
    "greedy_dim",
    "greedy_lookups",
    "greedy_size_lookups",
    "row_wise",
    "column_wise",
    "replicated",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanOptions:
    """How embedding tables are spread over the ranks."""

    planner: PlannerName = "greedy_size"
    """round_robin, greedy_*: whole tables, to one rank after another, or the costliest first, each to the rank that
    has least of size, dim, lookups x dim, or size x lookups x dim. row_wise, column_wise: every table is cut into
    one piece for each rank. replicated: every rank holds everything."""
    file: Path | None = None
    """A plan written by hand or by ``windrow plan``; then no planner is asked."""
    rank_memory_bytes: int = 0
    """What each rank has for tables and optimiser state; 0 for no limit."""
    replicate_below_bytes: int = 65536
    """Planners replicate float32 tables that are smaller than this, where there are several ranks; 0 for none.

    Of N ranks that take b samples each, a rank sends on average (N - 1) / N x b vectors forward and as many gradients
    back for a table on one rank, and 2 (N - 1) / N x rows of them in the all-reduce of a replicated one: replicating
    sends less where rows < b. The default is the size of 1024 rows of 16 float32 numbers."""

    def __post_init__(self) -> None:
        if self.planner not in get_args(PlannerName):
            raise RecipeError(
                f'planner = "{self.planner}": expected one of {", ".join(get_args(PlannerName))}'
            )
        for name in ("rank_memory_bytes", "replicate_below_bytes"):
            if getattr(self, name) < 0:
                raise RecipeError(f"{name} = {getattr(self, name)}: expected 0 or more")

"""Where does an embedding row live? Tables, plans, and simple planners."""

from windrow.partition.tables.plan import Plan, Shard, TableSpec, check_plan, rank_bytes
from windrow.partition.tables.plan_file import describe_plan, read_plan, write_plan
from windrow.partition.tables.planners import PlanOptions, make_plan, plan_with_planner

__all__ = [
    "Plan",
    "PlanOptions",
    "Shard",
    "TableSpec",
    "check_plan",
    "describe_plan",
    "make_plan",
    "plan_with_planner",
    "rank_bytes",
    "read_plan",
    "write_plan",
]

"""Where does an embedding row live? Tables, plans, and simple planners."""

from windrow.partition.tables.options import PlanOptions
from windrow.partition.tables.plan import Plan, Shard, check_plan, rank_bytes
from windrow.partition.tables.plan_file import read_plan, write_plan
from windrow.partition.tables.planners import make_plan, plan_with_planner
from windrow.partition.tables.spec import TableSpec
from windrow.partition.tables.summary import describe_plan

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

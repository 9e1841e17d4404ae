"""Where does an embedding row live? Tables, plans, and simple planners."""

from windrow.partition.tables.plan import Cost, Plan, Replica, Shard, TableSpec, check_plan, rank_bytes
from windrow.partition.tables.plan_file import read_plan, write_plan
from windrow.partition.tables.planners import PlanOptions, make_plan, plan_with_planner, register_planner

__all__ = [
    "Cost",
    "Plan",
    "PlanOptions",
    "Replica",
    "Shard",
    "TableSpec",
    "check_plan",
    "make_plan",
    "plan_with_planner",
    "rank_bytes",
    "read_plan",
    "register_planner",
    "write_plan",
]

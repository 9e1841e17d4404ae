"""Where does an embedding row live? Tables, what they cost, plans, and planners."""

from windrow.partition.tables.cost_model import ComputeModel
from windrow.partition.tables.costs import PlanCost, TableCosts, Workload
from windrow.partition.tables.plan import Copies, Cost, Plan, Replica, Shard, TableSpec, check_plan, rank_bytes
from windrow.partition.tables.plan_file import read_plan, write_plan
from windrow.partition.tables.planners import PlanOptions, make_plan, plan_with_planner, register_planner
from windrow.partition.tables.search import SearchOptions, search_plan

__all__ = [
    "ComputeModel",
    "Copies",
    "Cost",
    "Plan",
    "PlanCost",
    "PlanOptions",
    "Replica",
    "SearchOptions",
    "Shard",
    "TableCosts",
    "TableSpec",
    "Workload",
    "check_plan",
    "make_plan",
    "plan_with_planner",
    "rank_bytes",
    "read_plan",
    "register_planner",
    "search_plan",
    "write_plan",
]

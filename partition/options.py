"""The recipe section that says how a graph is split."""

from dataclasses import dataclass
from typing import Literal, get_args

from windrow.comm.errors import RecipeError
from windrow.partition.constraints import CONSTRAINTS, SALIENT_CONSTRAINTS

__all__ = ["Method", "PartitionOptions", "VertexOrderName"]

Method = Literal["metis", "fennel", "random"]
VertexOrderName = Literal["vip", "original"]


@dataclass(frozen=True, kw_only=True, slots=True)
class PartitionOptions:
    """How to split a graph."""

    num_parts: int = 2
    """Number of parts: one for each rank that will train."""
    method: Method = "metis"
    """metis: least cut, needs DGL and memory for the whole graph several times over; fennel: streaming, for graphs
    that METIS cannot hold; random: the baseline."""
    balance: tuple[str, ...] = SALIENT_CONSTRAINTS
    """What every part holds its share of: names out of train, validation, other, degree, vertices."""
    imbalance: float = 0.03
    """Tolerated excess of a part over the mean in each constraint: 0.03 for 3 %."""
    seed: int = 0
    """Seed of vertex orders and ties; equal options and seed give equal parts."""
    restarts: int = 4
    """metis only: number of METIS runs, each on another vertex order, that are combined."""
    refine_cycles: int = 4
    """metis only: largest number of V-cycles of each refinement; 0 takes METIS's best result as it is."""
    stream_passes: int = 5
    """fennel only: passes over the vertices; 1 for plain streaming."""
    order: VertexOrderName = "vip"
    """How vertices stand inside a part. vip: those that minibatches of the part's rank need most often come first, so
    that any first share of a part's rows is the best to keep near; needs training vertices. original: as the user has
    them."""

    def __post_init__(self) -> None:
        if self.method not in get_args(Method):
            raise RecipeError(f'method = "{self.method}": expected one of {", ".join(get_args(Method))}')
        if self.order not in get_args(VertexOrderName):
            raise RecipeError(
                f'order = "{self.order}": expected one of {", ".join(get_args(VertexOrderName))}'
            )
        for name, least in (("num_parts", 1), ("restarts", 1), ("refine_cycles", 0), ("stream_passes", 1)):
            value = getattr(self, name)
            if value < least:
                raise RecipeError(f"{name} = {value}: expected at least {least}")
        if not 0 <= self.imbalance < float("inf"):
            raise RecipeError(f"imbalance = {self.imbalance}: expected 0 or more, for example 0.03 for 3 %")
        unknown = [name for name in self.balance if name not in CONSTRAINTS]
        if unknown or len(set(self.balance)) != len(self.balance):
            raise RecipeError(
                f"balance = {list(self.balance)}: expected different names of {', '.join(CONSTRAINTS)}"
            )

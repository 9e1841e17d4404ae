"""Embedding tables whose rows are spread over ranks, as trainers and tasks see them: in a model or beside it."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol, Self

import torch
from torch import Tensor, nn

from windrow.comm.errors import RecipeError

if TYPE_CHECKING:
    from windrow.comm.wire import WireOptions
    from windrow.partition.tables.plan import Plan, TableSpec
    from windrow.training.shard_files import StoredTables

__all__ = ["EmbeddingModule", "RowLookup", "check_number_formats"]


class RowLookup(Protocol):
    """Rows of some ids on their way to this rank. Every stage is collective, and starts those before it."""

    def start_ids(self) -> None:
        """Wait for the counts and send the ids."""

    def finish(self) -> Tensor:
        """Look them up and wait for them, once the update of the step before is over: [ids, columns] float32."""

    def drop(self) -> None:
        """Give the lookup up before its rows were read."""


class EmbeddingModule(nn.Module, ABC):
    """Tables of one or several features; `windrow.recsys.sharded.collection.ShardedTables` is one.

    Some learn in the backward pass, the others in `step`.
    """

    specs: "Sequence[TableSpec]"
    """Of the tables that ranks hold."""
    plan: "Plan"
    """Which rank holds which rows."""
    forms: "WireOptions"
    """In which number formats rows and their gradients travel."""
    stage: str
    """Begins the names of its traffic in the meter."""
    row_ids: Tensor | None = None
    """int64 [rows], of one table: ids of its rows, where they stand in another order."""
    device: torch.device
    """Where its rows are."""
    moves: int
    """How often tables have moved to another plan, so that their parameters are others: the same on all ranks."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:  # noqa: FBT001, FBT002
        """What `to`, `cuda` or `half` do: RecipeError where rows, which are no parameters, would have to move along."""
        here = torch.empty(0, device=self.device)
        there = fn(here)
        if (there.device, there.dtype) != (here.device, here.dtype):
            raise RecipeError(
                f"{type(self).__name__} was made on {here.device} in {here.dtype} and cannot move to {there.device} in "
                f"{there.dtype}: make it with device = torch.device({there.device.type!r}), in float32"
            )
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    @abstractmethod
    def start_rows(self, ids: Tensor) -> RowLookup:
        """Start to look up rows one by one, in a collection of one feature: send the counts. Collective.

        Where gradients are recorded every rank runs one backward pass through the result, also of no ids.

        Args:
            ids: int64 [n] row numbers; must stay untouched until the lookup is finished.

        Raises:
            DataError: there is no such row.
            RecipeError: there are several features, or rows come in sums only.
        """

    @abstractmethod
    def replicated_parameters(self) -> Iterable[nn.Parameter]:
        """What every rank holds: gradients must be summed over ranks before `step`."""

    @abstractmethod
    def local_tables(self) -> "Sequence[StoredTables]":
        """What this rank stores, with the state of optimisers."""

    @abstractmethod
    def refresh_copies(self) -> None:
        """Let lookups know what was written into `local_tables`, where ranks have copies of rows. Collective."""

    @abstractmethod
    def left_out_of_state_dict(self) -> AbstractContextManager[None]:
        """While the ``with`` block runs, `state_dict` has none of these tables, and is not collective."""

    @abstractmethod
    def move_to(self, plan: "Plan") -> None:
        """Store the tables as another plan has it. Collective."""

    @abstractmethod
    def scale_learning_rate(self, factor: float) -> None:
        """Learn at the peak rate times this from the next lookup on. Must agree."""

    @abstractmethod
    def step(self) -> None:
        """Learn where the backward pass did not. Collective."""

    @abstractmethod
    def round_anew(self, *counters: int) -> None:
        """From now on gradients that travel in few bits are rounded by the random numbers of these counters."""


def check_number_formats(embedding: EmbeddingModule, wire: "WireOptions") -> None:
    """Refuse tables that were made for other number formats on the wire than the trainer's: RecipeError."""
    forms = embedding.forms
    if (forms.vectors, forms.gradients) != (wire.vectors, wire.gradients):
        raise RecipeError(
            f"the trainer's wire has vectors = {wire.vectors!r} and gradients = {wire.gradients!r}, but the tables "
            f"were made for {forms.vectors!r} and {forms.gradients!r}: give both the same WireOptions"
        )

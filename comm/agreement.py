"""Debug mode: before a collective, all ranks compare what must agree, and all raise the same error if it does not."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from windrow.comm.errors import CollectiveMismatchError

if TYPE_CHECKING:
    from windrow.comm.world import World

__all__ = ["check_agreement"]


def check_agreement(world: "World", call: Mapping[str, object]) -> None:
    """Compare a description of the collective that each rank is about to issue. Collective.

    Args:
        world: all its ranks call this at the same point of their collective order.
        call: what must be equal on all ranks: the operation, stage, shape, dtype, and so on.

    Raises:
        CollectiveMismatchError: on every rank, with the same text, listing each rank's call.

    Cost: one all-gather of a few hundred bytes.
    """
    calls = world.all_gather_object(dict(call), stage="debug agreement")
    if all(other == calls[0] for other in calls):
        return
    lines = "\n".join(f"  rank {rank}: {_describe(other)}" for rank, other in enumerate(calls))
    raise CollectiveMismatchError(
        f"ranks issued collectives that do not agree:\n{lines}\n"
        "Every rank must issue the same collectives in the same order; look for a branch that depends on the rank."
    )


def _describe(call: Mapping[str, object]) -> str:
    details = ", ".join(f"{key}={value}" for key, value in call.items() if key != "operation")
    return f"{call['operation']}({details})"

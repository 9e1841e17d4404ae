"""Keep three batches in flight: counts of one, ids of the next, lookup and dense work of the third.

    step            i              i + 1          i + 2
    batch i         lookup, dense
    batch i + 1     ids sent       lookup, dense
    batch i + 2     counts sent    ids sent       lookup, dense

As TorchRec's TrainPipelineSparseDist, the answer is that of one batch after another: a lookup starts only after the
update of the batch before, since it may need the same rows. What overlaps is all that does not depend on weights.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeVar

__all__ = ["StagedLookup", "pipelined"]

T = TypeVar("T")


class StagedLookup(Protocol):
    """A lookup whose counts are on their way; each method starts the next stage. Collectives, all of them."""

    def start_ids(self) -> None:
        """Wait for the counts and send the ids."""

    def start_lookup(self) -> None:
        """Wait for the ids, look them up and send back what was found."""


L = TypeVar("L", bound=StagedLookup)


def pipelined(batches: Iterable[T], start: Callable[[T], L]) -> Iterator[tuple[T, L]]:
    """Run through batches with the two that come next already on their way. Collective.

    Args:
        batches: as many on every rank.
        start: begins the lookup of a batch by sending its counts.

    Yields:
        Each batch and its lookup, whose `start_lookup` has been called. The caller finishes it, and updates the
        weights, before it asks for the next.
    """
    source = iter(batches)

    def take() -> tuple[T, L] | None:
        for batch in source:
            return batch, start(batch)
        return None

    def send_ids(item: tuple[T, L] | None) -> tuple[T, L] | None:
        if item is not None:
            item[1].start_ids()
        return item

    ids_sent = send_ids(take())
    counted = take()
    while ids_sent is not None:
        current = ids_sent
        current[1].start_lookup()
        ids_sent = send_ids(counted)
        counted = take()
        yield current

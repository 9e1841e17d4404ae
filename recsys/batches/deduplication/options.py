"""What is held and done once: the recipe section, and RecD's formulas of how much there is to save.

The formulas are those of Zhao et al., MLSys 2023, arXiv 2211.05239, pure arithmetic. Symbols, as in the paper::

    S      samples of a session that are next to one another in a batch, on average
    B      samples of a batch
    l(f)   ids in a list of feature f, on average
    d(f)   probability that f is unchanged from one sample of a session to the next; of a group: that all of it is

    Len(f)           = B l(f)                                     ids of a batch
    DedupeLen(f)     = (B / S) (1 + (S - 1) (1 - d(f))) l(f)      ids of the distinct lists
    DedupeFactor(f)  = Len(f) / DedupeLen(f) = S / (1 + (S - 1) (1 - d(f)))

    d = 0 -> 1      d = 1 -> S      S = 16.5, d = 0.9 -> 6.47

They count runs of equal neighbours, and hold where the samples of a session are neighbours (a clustered log). Where
sessions are interleaved, the neighbours of a session in a batch are far apart in the session, and more has changed:
there they promise too much. Where a value comes back later in the batch, of another session too, they promise too
little. Batches must therefore be measured as well, see `windrow.recsys.batches.deduplication.survey`.

A batch is cut out of the log, and cuts go through sessions. Of a log whose sessions have S samples on average, a piece
of m neighbours touches 1 + (m - 1) / S sessions, since each of the m - 1 steps from one sample to the next leaves a
session with probability 1 / S. A rank's batch has one such piece for each shard that it reads
(`windrow.recsys.batches.batch_reader`).
"""

from collections.abc import Sequence

from windrow.comm.errors import RecipeError
from windrow.comm.options import checked_dataclass

__all__ = [
    "INVERSE_BYTES",
    "WORTHWHILE_FACTOR",
    "DeduplicationOptions",
    "check_groups",
    "dedupe_factor",
    "left_of_batch",
    "samples_per_session_in_batch",
]


@checked_dataclass
class DeduplicationOptions:
    """Seven steps of RecD (Zhao et al., MLSys 2023, its O1 to O7), each with a switch of its own, and single ids."""

    groups: tuple[tuple[str, ...], ...] = ()
    """Features whose lists repeat; those of one group change together, such as [["cart", "sellers"], ["history"]].
    `windrow groups` proposes them."""
    shard: bool = False
    """O1: the prepared log keeps the samples of a session in one file. Needs log.session."""
    cluster: bool = False
    """O2: the prepared log keeps the samples of a session next to one another, in order of time."""
    read: bool = True
    """O3: the reader holds and gives equal lists of a group once. Without groups nothing is given once."""
    transform: bool = True
    """O4: the reader's transforms run once on each distinct list. Needs `read`."""
    look_up: bool = True
    """O5: distinct lists alone travel and are looked up. Needs `read`."""
    expand_jagged: bool = True
    """O6: rows of lists are copied to their samples without padding. Off: through a padded matrix, to compare; only
    where `compute` is off too, since lists that are computed once are not copied before."""
    compute: bool = True
    """O7: what depends on a group alone is computed once for each distinct row. Needs `look_up`."""
    index_dedup: bool = False
    """Of features in model.sequences, with groups or without, a rank asks for each distinct id of its minibatch once,
    and adds up the gradients of its places before they travel (TorchRec's use_index_dedup). Pays where ids repeat and
    the network is slower than memory."""

    def __post_init__(self) -> None:
        """Refuse contradictions.

        Raises:
            RecipeError: an empty group, a feature in two groups, or a step without the one that it builds on.
        """
        check_groups(self.groups)
        if not self.groups:
            return
        for step, needed in (("transform", "read"), ("look_up", "read"), ("compute", "look_up")):
            if getattr(self, step) and not getattr(self, needed):
                raise RecipeError(
                    f"deduplication.{step} = true needs deduplication.{needed} = true: turn {step} off as well"
                )

    def read_groups(self) -> tuple[tuple[str, ...], ...]:
        """Groups whose lists the reader gives once."""
        return self.groups if self.read else ()

    def looked_up_groups(self) -> tuple[tuple[str, ...], ...]:
        """Groups whose lists travel and are looked up once."""
        return self.groups if self.look_up else ()


def check_groups(groups: Sequence[Sequence[str]]) -> list[str]:
    """The features of all groups.

    Raises:
        RecipeError: a group without features, or a feature that is named twice.
    """
    if not all(groups):
        raise RecipeError("deduplication.groups holds an empty group: name its features or remove it")
    features = [feature for group in groups for feature in group]
    for feature in features:
        if features.count(feature) > 1:
            raise RecipeError(f"deduplication.groups names {feature!r} twice: a feature is in one group")
    return features


WORTHWHILE_FACTOR = 1.5
"""A feature of a smaller factor is better left alone: the inverse and the search for equal lists cost more."""

INVERSE_BYTES = 8
"""One int64 for each sample of a group: the row that it has."""


def dedupe_factor(samples_per_session: float, unchanged: float) -> float:
    """DedupeFactor, from 1 to S: ids of a batch over ids of its distinct lists, if their mean length does not change.

    Of S, at least 1, and d, from 0 to 1.
    """
    return samples_per_session / (1.0 + (samples_per_session - 1.0) * (1.0 - unchanged))


def left_of_batch(batch_size: float, repeated_share: float, *, pieces: float = 1.0) -> float:
    """Expected samples of a batch that do not repeat their neighbour, from p to B: ``p + (B - p) (1 - r)``.

    Args:
        batch_size: B, of one rank.
        repeated_share: r, of all samples of the log those that are as the one before, which is of the same session;
            where samples weigh as much as they have ids, that share of the ids: the result, times the mean length of
            lists, is then their ids.
        pieces: p, runs of neighbours that the batch is made of, such as a rank's shards; at most one for each sample.
    """
    begun = min(pieces, batch_size)
    return begun + (batch_size - begun) * (1.0 - repeated_share)


def samples_per_session_in_batch(batch_size: float, samples_per_session: float, *, pieces: float = 1.0) -> float:
    """S in the batch, from 1 to S of the log: what is left of it where the borders of pieces cut sessions.

    A piece of m = B / p samples touches 1 + (m - 1) / S sessions, so that S in the batch is m over that; 1 where the
    batch is empty. The distinct rows of a batch are B over the DedupeFactor of this S. Arguments: of `left_of_batch`.
    """
    length = batch_size / min(pieces, batch_size) if batch_size else 1.0
    return length / (1.0 + (length - 1.0) / samples_per_session)

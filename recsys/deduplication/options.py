"""The recipe section that says which features repeat from sample to sample, and what is done once for each."""

from dataclasses import dataclass

from windrow.comm.errors import RecipeError

__all__ = ["DeduplicationOptions"]


@dataclass(frozen=True, kw_only=True, slots=True)
class DeduplicationOptions:
    """Seven steps of RecD (Zhao et al., MLSys 2023, its O1 to O7), each with a switch of its own."""

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

    def __post_init__(self) -> None:
        """Refuse contradictions.

        Raises:
            RecipeError: an empty group, a feature in two groups, or a step without the one that it builds on.
        """
        if any(not group for group in self.groups):
            raise RecipeError("deduplication.groups holds an empty group: name its features or remove it")
        features = [feature for group in self.groups for feature in group]
        twice = sorted({feature for feature in features if features.count(feature) > 1})
        if twice:
            raise RecipeError(f"deduplication.groups names {twice[0]!r} twice: a feature is in one group")
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

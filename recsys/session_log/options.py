"""What a generated log of sessions looks like: its features, and how they change from sample to sample."""

from dataclasses import dataclass
from typing import Literal, get_args

from windrow.comm.errors import RecipeError
from windrow.recsys.log_options import RESERVED_NAMES

__all__ = ["FeatureGroup", "SampleOrder", "SessionFeature", "SessionLogOptions", "check_order"]

SampleOrder = Literal["time", "sessions"]
"""time: as a message bus brings samples, those of a session among those of many others; sessions: those of a session
next to one another, in order of time, sessions in order of their beginnings."""

OWN_COLUMNS = ("label", "session", "time")
"""Columns that every generated log has."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SessionFeature:
    """One sparse feature."""

    name: str
    """Of the column."""
    rows: int
    """Rows of its table: ids are from 0 to rows - 1."""
    skew: float = 0.9
    """Exponent of the ids' popularity: the k-th most frequent one is drawn about in proportion to k ** -skew."""
    effect: float = 0.0
    """What it adds to the logit of a click, as a standard deviation."""

    def __post_init__(self) -> None:
        """Check the ranges.

        Raises:
            RecipeError: names the feature, the field, its value and what is allowed.
        """
        if not self.name or self.name in RESERVED_NAMES:
            raise RecipeError(f"a generated feature cannot be called {self.name!r}: choose another name")
        if self.rows < 1:
            raise RecipeError(f"feature {self.name!r}: rows = {self.rows}: must be at least 1")
        if not 0 <= self.skew < float("inf"):
            raise RecipeError(f"feature {self.name!r}: skew = {self.skew}: must be 0 or above, and finite")
        if self.effect and self.rows == 1:
            raise RecipeError(
                f"feature {self.name!r}: effect = {self.effect}: needs at least 2 rows, since one id says nothing "
                "about clicks"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class FeatureGroup:
    """Features that change together: at each sample of a session but the first all keep their value, or none does."""

    name: str
    """For messages, and part of what its random numbers depend on."""
    features: tuple[SessionFeature, ...] = ()
    """Sparse features."""
    mean_length: float | None = None
    """None: one id each. Else each has a list, all of one length: at least 1, geometric, with this mean."""
    unchanged: float = 0.0
    """Chance that a sample has what the sample before it in the session has."""
    shifted: float = 0.0
    """Lists only: share of changes where the newest id enters at the end and the oldest one falls out at the front; at
    the others the whole list is drawn anew."""
    empty: float = 0.0
    """Lists only: share of sessions in which the lists are empty from beginning to end."""
    dense: tuple[str, ...] = ()
    """Columns of dense values that change with the group, drawn from the standard normal distribution."""
    dense_effect: float = 0.0
    """What each dense column adds to the logit of a click, as a standard deviation."""

    def __post_init__(self) -> None:
        """Check the ranges, and what goes together.

        Raises:
            RecipeError: names the group, the field, its value and what is allowed.
        """
        for field in ("unchanged", "shifted", "empty"):
            value = getattr(self, field)
            if not 0 <= value <= 1:
                raise RecipeError(f"group {self.name!r}: {field} = {value}: must be from 0 to 1")
        if self.mean_length is None and (self.shifted or self.empty):
            raise RecipeError(
                f"group {self.name!r}: shifted and empty are for lists: give it a mean_length too"
            )
        if self.mean_length is not None and not 1 <= self.mean_length < float("inf"):
            raise RecipeError(f"group {self.name!r}: mean_length = {self.mean_length}: must be at least 1")
        if not self.features and not self.dense:
            raise RecipeError(f"group {self.name!r} is empty: give it features or dense columns")


@dataclass(frozen=True, kw_only=True, slots=True)
class SessionLogOptions:
    """A log of sessions. `windrow.recsys.session_log.preset.recd` makes the published one."""

    groups: tuple[FeatureGroup, ...]
    """The columns, by what changes together."""
    samples_per_session: float = 16.5
    """Mean; sessions have at least 1 sample, and their sizes are geometric."""
    concurrent_sessions: int = 10_000
    """Sessions under way at a time. In order of time a batch of B samples has about one sample of each of its sessions
    where this is well above B."""
    session_seconds: int = 1800
    """How long a session lasts, from which the distance between two beginnings follows."""
    click_share: float = 0.2
    """Share of samples with label 1, about."""
    seed: int = 0
    """Another seed gives another log of the same statistics."""

    def __post_init__(self) -> None:
        """Check the ranges, and that no two columns have one name.

        Raises:
            RecipeError: names the field, its value and what is allowed.
        """
        if not 1 <= self.samples_per_session < float("inf"):
            raise RecipeError(f"samples_per_session = {self.samples_per_session}: must be at least 1")
        for field in ("concurrent_sessions", "session_seconds"):
            if getattr(self, field) < 1:
                raise RecipeError(f"{field} = {getattr(self, field)}: must be at least 1")
        if not 0 < self.click_share < 1:
            raise RecipeError(f"click_share = {self.click_share}: must be between 0 and 1")
        for what, names in (
            ("groups", [group.name for group in self.groups]),
            ("columns", [*OWN_COLUMNS, *(feature.name for feature in self.features), *self.dense]),
        ):
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                raise RecipeError(f"two {what} are called {twice[0]!r}: give each a name of its own")

    @property
    def features(self) -> tuple[SessionFeature, ...]:
        """All sparse features, in the order of their columns."""
        return tuple(feature for group in self.groups for feature in group.features)

    @property
    def dense(self) -> tuple[str, ...]:
        """All dense columns, in their order."""
        return tuple(name for group in self.groups for name in group.dense)

    def ids_per_sample(self) -> float:
        """Mean number of ids of a sample, over all features."""
        return sum(
            len(group.features) * (1 if group.mean_length is None else group.mean_length * (1 - group.empty))
            for group in self.groups
        )


def check_order(order: str) -> None:
    """Refuse an order that there is not.

    Raises:
        RecipeError: names it and the ones there are.
    """
    if order not in get_args(SampleOrder):
        raise RecipeError(f'order = "{order}": expected one of {", ".join(get_args(SampleOrder))}')

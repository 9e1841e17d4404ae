"""What a generated log of sessions looks like: features that change from sample to sample, and RecD's log as a preset.

The preset keeps what Zhao et al., RecD: Deduplication for End-to-End Deep Learning Recommendation Model Training
Infrastructure, MLSys 2023 (arXiv 2211.05239), measured of production logs, and what Meta's published traces of
embedding lookups show (facebookresearch/dlrm_datasets, 2021): docs/session-logs.md has the figures. Not published, and
chosen here: which features there are. Lists on the user's side are long and mostly unchanged, features of the item that
is shown are single ids that change nearly always, table sizes go over five orders of magnitude, and popularity falls
with the rank to the power 0.9.
"""

from typing import Annotated, Literal

from pydantic import Field

from windrow.comm.errors import RecipeError
from windrow.comm.options import NonNegativeFloat, PositiveInt, Share, checked_dataclass

__all__ = ["FeatureGroup", "SampleOrder", "SessionFeature", "SessionLogOptions", "recd"]

SampleOrder = Literal["time", "sessions"]
"""time: as a message bus brings samples, those of a session among those of many others; sessions: those of a session
next to one another, in order of time, sessions in order of their beginnings."""

OWN_COLUMNS = ("label", "session", "time")
"""Columns that every generated log has."""


@checked_dataclass
class SessionFeature:
    """One sparse feature."""

    name: str
    """Of the column."""
    rows: PositiveInt
    """Rows of its table: ids are from 0 to rows - 1."""
    skew: NonNegativeFloat = 0.9
    """Exponent of the ids' popularity: the k-th most frequent one is drawn about in proportion to k ** -skew."""
    effect: float = 0.0
    """What it adds to the logit of a click, as a standard deviation."""


@checked_dataclass
class FeatureGroup:
    """Features that change together: at each sample of a session but the first all keep their value, or none does."""

    name: str
    """For messages, and part of what its random numbers depend on."""
    features: tuple[SessionFeature, ...] = ()
    """Sparse features."""
    mean_length: Annotated[float, Field(ge=1)] | None = None
    """None: one id each. Else each has a list, all of one length: at least 1, geometric, with this mean."""
    unchanged: Share = 0.0
    """Chance that a sample has what the sample before it in the session has."""
    shifted: Share = 0.0
    """Lists only: share of changes where the newest id enters at the end and the oldest one falls out at the front; at
    the others the whole list is drawn anew."""
    empty: Share = 0.0
    """Lists only: share of sessions in which the lists are empty from beginning to end."""
    dense: tuple[str, ...] = ()
    """Columns of dense values that change with the group, drawn from the standard normal distribution."""
    dense_effect: float = 0.0
    """What each dense column adds to the logit of a click, as a standard deviation."""

    def __post_init__(self) -> None:
        """Check what goes together.

        Raises:
            RecipeError: names the group, the field, its value and what is allowed.
        """
        if self.mean_length is None and (self.shifted or self.empty):
            raise RecipeError(f"group {self.name!r}: shifted and empty are for lists: give it a mean_length too")


@checked_dataclass
class SessionLogOptions:
    """A log of sessions. `windrow.recsys.log.synthetic.options.recd` makes the published one."""

    groups: tuple[FeatureGroup, ...]
    """The columns, by what changes together."""
    samples_per_session: Annotated[float, Field(ge=1)] = 16.5
    """Mean; sessions have at least 1 sample, and their sizes are geometric."""
    concurrent_sessions: PositiveInt = 10_000
    """Sessions under way at a time. In order of time a batch of B samples has about one sample of each of its sessions
    where this is well above B."""
    session_seconds: PositiveInt = 1800
    """How long a session lasts, from which the distance between two beginnings follows."""
    click_share: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """Share of samples with label 1, about."""
    seed: int = 0
    """Another seed gives another log of the same statistics."""

    def __post_init__(self) -> None:
        """Check that no two columns have one name.

        Raises:
            RecipeError: names the field, its value and what is allowed.
        """
        columns = [*OWN_COLUMNS, *(feature.name for feature in self.features), *self.dense]
        for what, names in (("groups", [group.name for group in self.groups]), ("columns", columns)):
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


EFFECTS = {
    "history_categories": 0.5,
    "watched_creators": 0.3,
    "country": 0.2,
    "age_band": 0.3,
    "device": 0.2,
    "item": 0.5,
    "seller": 0.3,
    "brand": 0.4,
    "category": 0.6,
}
"""Features that clicks depend on."""


def recd(*, length_scale: float = 1.0, rows_scale: float = 1.0, seed: int = 0) -> SessionLogOptions:
    """A log with the published statistics: 31 features, about 500 ids a sample, 8 dense columns.

    Args:
        length_scale: what the mean lengths of lists are multiplied by; none becomes shorter than 1.
        rows_scale: what the sizes of tables are multiplied by; none becomes smaller than 4.
        seed: another seed gives another log.

    Raises:
        RecipeError: a scale is not above 0.
    """
    for name, scale in (("length_scale", length_scale), ("rows_scale", rows_scale)):
        if not 0 < scale < float("inf"):
            raise RecipeError(f"{name} = {scale}: must be above 0 and finite")

    def features(**sizes: int) -> tuple[SessionFeature, ...]:
        return tuple(
            SessionFeature(name=name, rows=max(4, round(rows * rows_scale)), effect=EFFECTS.get(name, 0.0))
            for name, rows in sizes.items()
        )

    def lists(name: str, mean: float, unchanged: float, shifted: float, **sizes: int) -> FeatureGroup:
        return FeatureGroup(
            name=name,
            features=features(**sizes),
            mean_length=max(1.0, mean * length_scale),
            unchanged=unchanged,
            shifted=shifted,
            empty=0.02,
        )

    history = {"history_items": 3_000_000, "history_shops": 300_000, "history_categories": 15_000}
    profile = {"country": 200, "region": 15_000, "city": 150_000, "language": 100, "age_band": 20, "income_band": 20}
    profile |= {"device": 3_000, "system": 50, "app_version": 900, "segment": 30_000, "cohort": 1_500, "carrier": 6_000}
    return SessionLogOptions(
        seed=seed,
        groups=(
            lists("history", 60, 0.76, 0.5, **history),
            lists("watched", 50, 0.76, 0.5, watched_videos=1_500_000, watched_creators=150_000),
            lists("cart", 10, 0.9, 0.3, cart_items=3_000_000, cart_sellers=300_000),
            lists("searches", 30, 0.85, 0.5, search_terms=600_000),
            lists("ads", 25, 0.85, 0.5, clicked_ads=900_000, advertisers=90_000),
            lists("follows", 60, 0.94, 0.3, followed_pages=1_500_000),
            lists("interests", 40, 0.94, 0.0, interests=60_000),
            FeatureGroup(
                name="user",
                features=features(user=3_000_000),
                unchanged=1.0,
                dense=("user_age", "user_activity", "user_spending", "user_tenure"),
                dense_effect=0.2,
            ),
            FeatureGroup(name="profile", features=features(**profile), unchanged=0.99),
            FeatureGroup(name="connection", features=features(network=10, cell=300_000), unchanged=0.9),
            FeatureGroup(
                name="item",
                features=features(item=3_000_000, seller=300_000, brand=60_000, category=3_000),
                unchanged=0.03,
                dense=("item_price", "item_age", "item_rating", "item_clicks"),
                dense_effect=0.4,
            ),
        ),
    )

"""The log that RecD describes, as far as its statistics are published.

Zhao et al., RecD: Deduplication for End-to-End Deep Learning Recommendation Model Training Infrastructure, MLSys 2023
(arXiv 2211.05239), measured 733 features of production logs. What is kept of it here:

    16.5      samples of a session, mean
    1.15      samples of a session in a batch of 4,096, where the log is in order of time
    80 %      of values are those of the sample before, counted by features
    81.6 %    the same, counted by ids
    89.4 %    of ids are there in the sample before, counting lists that moved on by one as well

Of Meta's published traces of embedding lookups (facebookresearch/dlrm_datasets, locality statistics of 2021):

    15.8      ids of a sample in each feature, mean over 856 tables
    6.9       times that an id occurs among 65,536 samples, mean over the ids that do

The three shares are quoted from memory of the paper and were not checked against its text. Not published, and chosen
here: which features there are. Lists on the user's side are long and mostly unchanged,
features of the item that is shown are single ids that change nearly always, table sizes go over five orders of
magnitude, and popularity falls with the rank to the power 0.9.
"""

from windrow.comm.errors import RecipeError
from windrow.recsys.session_log.options import FeatureGroup, SessionFeature, SessionLogOptions

__all__ = [
    "PUBLISHED_BATCH",
    "PUBLISHED_IDS_PER_FEATURE",
    "PUBLISHED_REUSE",
    "PUBLISHED_REUSE_SAMPLES",
    "published_statistics",
    "recd",
]

PUBLISHED_BATCH = 4096
"""Samples of the batches for which the paper says how many samples of a session they hold."""

PUBLISHED_IDS_PER_FEATURE = 15.8
"""Ids of a sample in each feature of Meta's traces."""

PUBLISHED_REUSE = 6.9
"""Times that an id occurs there among `PUBLISHED_REUSE_SAMPLES`, mean over the ids that occur."""

PUBLISHED_REUSE_SAMPLES = 65_536
"""Samples of a batch of the traces."""


def published_statistics() -> dict[str, float]:
    """The published figures, under the names of `windrow.recsys.session_log.statistics.SessionLogStatistics`."""
    return {
        "samples_per_session": 16.5,
        "samples_per_session_in_batch": 1.15,
        "unchanged_share": 0.80,
        "unchanged_id_share": 0.816,
        "repeated_id_share": 0.894,
    }


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

    def feature(name: str, rows: int, effect: float = 0.0) -> SessionFeature:
        return SessionFeature(name=name, rows=max(4, round(rows * rows_scale)), effect=effect)

    def lists(
        name: str, mean: float, unchanged: float, shifted: float, *features: SessionFeature
    ) -> FeatureGroup:
        length = max(1.0, mean * length_scale)
        return FeatureGroup(
            name=name,
            features=features,
            mean_length=length,
            unchanged=unchanged,
            shifted=shifted,
            empty=0.02,
        )

    return SessionLogOptions(
        seed=seed,
        groups=(
            lists(
                "history",
                60,
                0.76,
                0.5,
                feature("history_items", 3_000_000),
                feature("history_shops", 300_000),
                feature("history_categories", 15_000, 0.5),
            ),
            lists(
                "watched",
                50,
                0.76,
                0.5,
                feature("watched_videos", 1_500_000),
                feature("watched_creators", 150_000, 0.3),
            ),
            lists("cart", 10, 0.9, 0.3, feature("cart_items", 3_000_000), feature("cart_sellers", 300_000)),
            lists("searches", 30, 0.85, 0.5, feature("search_terms", 600_000)),
            lists("ads", 25, 0.85, 0.5, feature("clicked_ads", 900_000), feature("advertisers", 90_000)),
            lists("follows", 60, 0.94, 0.3, feature("followed_pages", 1_500_000)),
            lists("interests", 40, 0.94, 0.0, feature("interests", 60_000)),
            FeatureGroup(
                name="user",
                features=(feature("user", 3_000_000),),
                unchanged=1.0,
                dense=("user_age", "user_activity", "user_spending", "user_tenure"),
                dense_effect=0.2,
            ),
            FeatureGroup(
                name="profile",
                features=(
                    feature("country", 200, 0.2),
                    feature("region", 15_000),
                    feature("city", 150_000),
                    feature("language", 100),
                    feature("age_band", 20, 0.3),
                    feature("income_band", 20),
                    feature("device", 3_000, 0.2),
                    feature("system", 50),
                    feature("app_version", 900),
                    feature("segment", 30_000),
                    feature("cohort", 1_500),
                    feature("carrier", 6_000),
                ),
                unchanged=0.99,
            ),
            FeatureGroup(
                name="connection", features=(feature("network", 10), feature("cell", 300_000)), unchanged=0.9
            ),
            FeatureGroup(
                name="item",
                features=(
                    feature("item", 3_000_000, 0.5),
                    feature("seller", 300_000, 0.3),
                    feature("brand", 60_000, 0.4),
                    feature("category", 3_000, 0.6),
                ),
                unchanged=0.03,
                dense=("item_price", "item_age", "item_rating", "item_clicks"),
                dense_effect=0.4,
            ),
        ),
    )

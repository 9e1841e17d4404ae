"""windrow.launch.log_survey: against counting samples one by one."""

import pytest

from windrow.launch.log_survey import StepCounter, open_and_survey
from windrow.launch.recommendation_recipe import load_recommendation_recipe

GROUPS = (("cart", "sellers"), ("history",))
POOLED, SEQUENCES = ("item", "user", "cart", "tags", "sellers"), ("history",)
MULTI_HOT = ("cart", "sellers", "history", "tags")
VECTOR_BYTES = 4 * 16


@pytest.fixture(scope="module")
def recipe(planted_store, tmp_path_factory):
    folder = tmp_path_factory.mktemp("planted")
    planted_store(folder, order="sessions")
    return load_recommendation_recipe(folder / "planted.toml")


def means(batches, group):
    """Distinct rows of the mean batch, and ids in them, by Python's sets."""
    rows, ids = 0, dict.fromkeys(group, 0)
    for batch in batches.batches:
        columns = [batch.codes[name].tolist() for name in group]
        first = {}
        for place, key in enumerate(zip(*columns, strict=True)):
            first.setdefault(key, place)
        rows += len(first)
        for name in group:
            ids[name] += int(batch.lengths[name][list(first.values())].sum())
    count = len(batches.batches)
    return rows / count, {name: number / count for name, number in ids.items()}


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("deduplicated", [False, True])
def test_against_counting(recipe, ranks, deduplicated):
    store, found = open_and_survey(recipe, ranks=ranks)
    counts = StepCounter(recipe, store, found, ranks=ranks, groups=GROUPS).count(
        found.clustered, deduplicated=deduplicated
    )
    size = found.clustered.num_samples
    rows = dict.fromkeys(found.features, size)
    ids = {name: found.clustered.num_ids(name) for name in found.features}
    group_rows = size * len(GROUPS)
    if deduplicated:
        group_rows = 0
        for group in GROUPS:
            distinct, of_distinct = means(found.clustered, group)
            group_rows += distinct
            rows |= dict.fromkeys(group, distinct)
            ids |= of_distinct
    inverses = 8 * size * len(GROUPS) * deduplicated
    assert counts.held_bytes == pytest.approx(
        ranks * (8 * sum(ids.values()) + 8 * sum(rows.values()) + inverses)
    )
    stored = found.num_stored["history"] / found.sample.num_ids("history")
    assert stored > 1.05, "30 of up to 40 ids are kept"
    assert counts.list_values == pytest.approx(ranks * ids["history"] * stored)
    assert counts.lookups == pytest.approx(ranks * sum(ids.values()))
    assert counts.items == pytest.approx(ranks * ids["history"])
    assert counts.group_rows == pytest.approx(ranks * group_rows)
    assert counts.jagged_bytes == pytest.approx(ranks * found.clustered.num_ids("history") * VECTOR_BYTES)
    longest = found.clustered.longest("history")
    assert counts.padded_bytes == pytest.approx(ranks * size * longest * VECTOR_BYTES)
    # Whole tables: each is on one rank, to which all others send.
    others = ranks - 1
    vectors = sum(rows[name] for name in POOLED) + sum(ids[name] for name in SEQUENCES)
    assert counts.vector_bytes == pytest.approx(others * vectors * VECTOR_BYTES)
    lengths = sum(rows[name] for name in POOLED if name in MULTI_HOT)
    headers = 8 * ranks * (2 + len(found.features) + deduplicated * 2)
    expected = others * (4 * sum(ids.values()) + 4 * lengths + (headers if others else 0))
    assert counts.id_bytes == pytest.approx(expected, abs=8 * ranks * 8)


def test_what_is_in_no_group_is_no_part_of_it(recipe):
    store, found = open_and_survey(recipe, ranks=1)
    counts = StepCounter(recipe, store, found, ranks=1, groups=()).count(found.clustered, deduplicated=True)
    assert (counts.list_values, counts.items, counts.group_rows, counts.padded_bytes) == (0, 0, 0, 0)
    assert counts.lookups == pytest.approx(sum(found.clustered.num_ids(name) for name in found.features))

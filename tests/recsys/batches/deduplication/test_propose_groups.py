"""windrow.recsys.batches.deduplication.propose_groups: planted groups are found, and hardly any other way is better."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.recsys.batches.deduplication.propose_groups import propose_groups, row_bytes
from windrow.recsys.batches.deduplication.survey import LogSurvey, survey_log

SESSION = 16
"""Samples of every session here."""


def survey_of(
    changes: dict[str, np.ndarray], lengths: dict[str, int] | None = None, *, batch_size: float = 1 << 14
) -> LogSurvey:
    """What a survey finds in one long run of sessions, from whether features change at each sample."""
    codes = {name: np.cumsum(changed).astype(np.int32) for name, changed in changes.items()}
    num_samples = len(next(iter(codes.values()), ()))
    sizes = {name: np.full(num_samples, (lengths or {}).get(name, 1), np.int32) for name in codes}
    within = np.arange(1, num_samples) % SESSION > 0
    return LogSurvey(
        num_samples=num_samples,
        num_sessions=num_samples // SESSION,
        split_samples=num_samples,
        is_clustered=True,
        batch_size=batch_size,
        pieces=1,
        codes=codes,
        lengths=sizes,
        repeated={name: within & ~changed[1:] for name, changed in changes.items()},
        ids={},
        batch_ids={},
        batches=(),
    )


def slow_cost(found: LogSurvey, costs: dict[str, float], groups) -> float:
    """Of a batch with these groups, all features that are in none plain."""
    grouped = {name for group in groups for name in group}
    total = sum(found.batch_size * costs[name] for name in costs if name not in grouped)
    for group in groups:
        total += 8 * found.batch_size
        total += found.predicted_rows(group) * sum(costs[name] for name in group)
    return total


def partitions(names):
    """All ways to put some of the names into groups."""
    if not names:
        yield []
        return
    first, *rest = names
    for found in partitions(rest):
        yield found
        yield [[first], *found]
        for place in range(len(found)):
            yield [*found[:place], [first, *found[place]], *found[place + 1 :]]


def test_planted_groups_are_found(planted_store, tmp_path):
    store = planted_store(tmp_path, num_sessions=1000)
    found = survey_log(store, batch_size=2048, reader_shards=2, size=1)
    costs = row_bytes(found, dict.fromkeys(found.features, 16), sequences=["history"])
    planted = {("user",), ("cart", "sellers"), ("history",), ("tags",)}
    assert set(propose_groups(found, costs)) == planted
    assert set(propose_groups(found, costs, least_factor=2.5)) == planted - {("tags",)}
    assert propose_groups(found, costs, least_factor=100) == ()
    sets = [propose_groups(found, costs, group_bytes=each) for each in (0, 1e5, 1e6, 1e9)]
    assert [len(groups) for groups in sets] == sorted(map(len, sets), reverse=True)
    assert len(sets[0]) > len(sets[2]) > len(sets[3]) == 0


@pytest.mark.parametrize("seed", range(8))
def test_close_to_the_best_of_all_ways(seed):
    draw = np.random.default_rng(seed)
    together = [draw.random(2000) < share for share in (0.05, 0.2, 0.4)]
    alone = 0.02 * (seed % 3)
    changes = {name: together[place % 3] | (draw.random(2000) < alone) for place, name in enumerate("abcde")}
    found = survey_of(changes, {name: int(draw.integers(1, 9)) for name in changes})
    costs = row_bytes(found, dict.fromkeys(changes, 4))
    proposed = slow_cost(found, costs, propose_groups(found, costs))
    best = min(slow_cost(found, costs, groups) for groups in partitions(list(changes)))
    none = slow_cost(found, costs, [])
    assert best <= proposed * (1 + 1e-12)
    assert proposed <= best + 0.02 * (none - best)


def slow_groups(found: LogSurvey, costs: dict[str, float]) -> tuple[tuple[str, ...], ...]:
    """All pairs, anew for each that is joined; of pairs that gain as much the first."""
    names = list(costs)

    def cost(places):
        group = [names[place] for place in places]
        return 8 * found.batch_size + found.predicted_rows(group) * sum(costs[name] for name in group)

    def gain(pair):
        return round(cost(pair[0]) + cost(pair[1]) - cost(pair[0] + pair[1]), 4)

    groups = [(place,) for place, name in enumerate(names) if found.predicted_factor([name]) > 1.5]
    while pairs := list(combinations(sorted(groups), 2)):
        best = max(pairs, key=gain)
        if gain(best) <= 0:
            break
        groups = [group for group in groups if group not in best] + [best[0] + best[1]]
    plain = [found.batch_size * sum(costs[names[place]] for place in group) for group in groups]
    kept = [sorted(group) for group, without in zip(groups, plain, strict=True) if cost(group) < without]
    return tuple(tuple(names[place] for place in group) for group in sorted(kept))


@given(st.integers(0, 1 << 32), st.integers(1, 12), st.integers(1, 4), st.integers(16, 300))
def test_equals_the_search_of_all_pairs(seed, num_features, num_kinds, num_samples):
    """Features that change alike, nearly alike, and not alike."""
    draw = np.random.default_rng(seed)
    kinds = [draw.random(num_samples) < share for share in draw.random(num_kinds)]
    changes = {
        f"feature {place}": kinds[draw.integers(num_kinds)] | (draw.random(num_samples) < noise)
        for place, noise in enumerate(draw.choice([0, 0, 0.02, 0.2], num_features))
    }
    found = survey_of(changes)
    costs = {name: float(draw.integers(1, 300)) for name in changes}
    assert propose_groups(found, costs) == slow_groups(found, costs)


def test_joining_must_save_more_than_it_costs():
    rarely, often = np.arange(1600) % 8 == 0, np.arange(1600) % 4 == 0
    found = survey_of({"a": rarely, "b": often})
    assert found.predicted_rows(["b"]) > 1.5 * found.predicted_rows(["a"])
    cheap, dear = 32.0, 108.0
    assert propose_groups(found, dict.fromkeys("ab", cheap)) == (("a", "b"),)
    assert propose_groups(found, dict.fromkeys("ab", dear)) == (("a",), ("b",))


def test_what_costs_more_than_it_saves_is_left_alone():
    constant = survey_of({"a": np.zeros(1600, bool)})
    assert propose_groups(constant, {"a": 16.0}) == (("a",),)
    assert propose_groups(constant, {"a": 8.0}) == ()
    assert propose_groups(constant, {}) == ()


def test_features_that_pay_only_together():
    constant = dict.fromkeys("abcdefgh", np.zeros(1600, bool))
    found = survey_of(constant)
    costs = dict.fromkeys(constant, 8.0)
    assert propose_groups(found, {"a": costs["a"]}) == ()
    assert propose_groups(found, costs) == (tuple("abcdefgh"),)


def test_the_order_of_features_is_kept():
    same = np.arange(1600) % 8 == 0
    assert propose_groups(survey_of(dict.fromkeys("zaby", same)), dict.fromkeys("zaby", 100.0)) == (
        ("z", "a", "b", "y"),
    )


def test_chance_repeats_in_other_sessions_are_no_reason():
    found = survey_of({"a": np.ones(1600, bool)})
    few_values = {"a": (np.arange(1600) % 3).astype(np.int32)}
    found = replace(found, codes=few_values, batches=[np.arange(1600)])
    assert found.distinct(["a"])[0] == 3
    assert propose_groups(found, row_bytes(found, {"a": 64})) == ()


def test_bytes_of_a_row():
    found = survey_of(dict.fromkeys(["item", "cart"], np.zeros(16, bool)), {"item": 1, "cart": 5})
    costs = row_bytes(found, {"item": 16, "cart": 16}, sequences=["cart"])
    assert costs == {"item": 8 + (8 + 64) + 128, "cart": 8 + 5 * (8 + 64 + 128)}


def test_all_partitions_are_tried():
    found = {tuple(sorted(tuple(sorted(group)) for group in groups)) for groups in partitions(["a", "b", "c"])}
    assert len(found) == 15, "the partitions of four: the fourth stands with those that are in no group"

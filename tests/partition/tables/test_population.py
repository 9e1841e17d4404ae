"""windrow.partition.tables.population: generated tables have the published statistics."""

from itertools import islice

import numpy as np

from windrow.partition.tables.access import expected_distinct, expected_reuse, steps_of
from windrow.partition.tables.population import DIMS, draw_tables, draw_tasks

PUBLISHED = [0.473, 0.152, 0.139, 0.112, 0.072, 0.032, 0.011, 0.005, 0.002, 0.001]
"""Shares of the rows that one of Meta's minibatches looks up once, twice, 3 to 4 times, ... (dlrm_datasets, 2021)."""
SAMPLES, MEAN_POOLING, MEAN_REUSE = 65_536, 15.81, 6.9


def test_the_population_has_the_published_reuse() -> None:
    tables = draw_tables(856, 3)
    lookups = np.array([SAMPLES * spec.lookups_per_sample for spec in tables])
    assert abs(np.mean(lookups) / SAMPLES - MEAN_POOLING) < 1e-6
    distinct = np.array(
        [expected_distinct(steps_of(spec), number) for spec, number in zip(tables, lookups, strict=True)]
    )
    assert 0.75 < lookups.sum() / distinct.sum() / MEAN_REUSE < 1.33
    reuse = np.stack([expected_reuse(steps_of(spec), number) for spec, number in zip(tables, lookups, strict=True)])
    found = (reuse * distinct[:, None]).sum(axis=0) / distinct.sum()
    assert np.abs(found - np.pad(PUBLISHED, (0, 7))).sum() < 0.25


def test_tasks_keep_to_what_was_asked() -> None:
    tables = draw_tables(50, 0, most_rows=100_000)
    assert max(spec.rows for spec in tables) <= 100_000
    drawn = list(islice(draw_tasks(tables, sizes=(2, 9), max_dim=32, most_bytes=1e8, seed=5), 40))
    assert {len(task) for task in drawn} == set(range(2, 10))
    assert {spec.dim for task in drawn for spec in task} == {dim for dim in DIMS if dim <= 32}
    assert max(sum(spec.num_bytes for spec in task) for task in drawn) <= 1e8
    assert all(len({spec.name for spec in task}) == len(task) for task in drawn)
    again = list(islice(draw_tasks(tables, sizes=(2, 9), max_dim=32, most_bytes=1e8, seed=5), 40))
    assert again == drawn

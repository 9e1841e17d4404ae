"""Cut, balance and halo against a slow count."""

import numpy as np
import pytest

from windrow.partition.quality import measure_quality


@pytest.mark.parametrize("seed", range(4))
def test_equals_slow_reference(random_csc, seed):
    indptr, indices = random_csc(seed, 40, 150)
    generator = np.random.default_rng(seed)
    assignment = generator.integers(0, 3, 40).astype(np.int32)
    train, validation = np.arange(10), np.arange(10, 15)
    quality = measure_quality(indptr, indices, assignment, 3, train_ids=train, validation_ids=validation)
    destinations = np.repeat(np.arange(40), np.diff(indptr))
    assert quality.cut_edges == sum(assignment[u] != assignment[v] for u, v in zip(indices, destinations, strict=True))
    assert quality.cut_fraction == quality.cut_edges / 150
    groups = {"train": train, "validation": validation, "other": np.arange(15, 40), "vertices": np.arange(40)}
    for name, ids in groups.items():
        counts = [sum(assignment[ids] == part) for part in range(3)]
        assert quality.balance[name] == pytest.approx(max(counts) / (len(ids) / 3))
    degrees = [np.diff(indptr)[assignment == part].sum() for part in range(3)]
    assert quality.balance["degree"] == pytest.approx(max(degrees) / 50)
    assert quality.part_sizes == tuple(np.bincount(assignment, minlength=3).tolist())
    for part in range(3):
        far = [u for u, v in zip(indices, destinations, strict=True) if assignment[v] == part != assignment[u]]
        assert quality.halo_sizes[part] == len(set(far))
        assert quality.remote_neighbour_fractions[part] == pytest.approx(len(far) / degrees[part])


def test_table_names_every_part_and_constraint(random_csc):
    quality = measure_quality(*random_csc(0, 20, 60), np.arange(20, dtype=np.int32) % 2, 2)
    lines = quality.table().splitlines()
    assert len(lines) == 5
    assert lines[0].split() == ["part", "vertices", "halo", "remote", "neighbours"]
    assert "of 60 stored edges" in lines[3]
    assert "degree" in lines[4]
    assert "vertices 1.000" in lines[4]


def test_graph_without_edges():
    quality = measure_quality(np.zeros(3, np.int64), np.empty(0, np.int32), np.array([0, 1], np.int32), 2)
    assert quality.cut_fraction == 0
    assert quality.remote_neighbour_fractions == (0.0, 0.0)

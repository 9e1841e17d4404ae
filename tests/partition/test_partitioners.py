"""Every method keeps the laws of a partition, and bad graphs are refused."""

import importlib.util
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windrow.comm.errors import DataError
from windrow.partition import partitioners
from windrow.partition.options import PartitionOptions
from windrow.partition.partitioners import _random_assignment, partition_graph
from windrow.partition.quality import measure_quality

RandomCSC = Callable[[int, int, int], tuple[np.ndarray, np.ndarray]]

needs_metis = pytest.mark.skipif(importlib.util.find_spec("dgl") is None, reason="METIS comes with DGL")
METHODS = pytest.mark.parametrize("method", ["random", "fennel", pytest.param("metis", marks=needs_metis)])
STREAMED = pytest.mark.parametrize("method", ["random", "fennel"])
"""Without METIS, whose process takes seconds to start: tests/partition/test_metis.py is about it."""

QUICK = {"restarts": 1, "refine_cycles": 1}


def partition(indptr, indices, num_parts, *, train_ids=None, validation_ids=None, **options):
    """`partition_graph` with the fields of its options as keywords."""
    chosen = PartitionOptions(num_parts=num_parts, **options)
    return partition_graph(indptr, indices, chosen, train_ids=train_ids, validation_ids=validation_ids)


def communities(num_communities, size, seed):
    """Symmetric graph: dense inside a community, one edge out of each vertex; ids shuffled. Also the communities."""
    generator = np.random.default_rng(seed)
    num_vertices = num_communities * size
    community = generator.permutation(num_vertices) % num_communities
    alike = community[:, None] == community[None, :]
    linked = np.where(alike, generator.random((num_vertices, num_vertices)) < 0.4, False)
    linked[np.arange(num_vertices), generator.integers(0, num_vertices, num_vertices)] = True
    linked = (linked | linked.T) & ~np.eye(num_vertices, dtype=bool)
    destinations, sources = np.nonzero(linked)
    indptr = np.searchsorted(destinations, np.arange(num_vertices + 1)).astype(np.int64)
    return indptr, sources.astype(np.int32), community


def check_laws(assignment, num_vertices, num_parts, train_ids):
    """Every vertex in exactly one part, no part empty, none without a training vertex."""
    assert (assignment.dtype, assignment.shape) == (np.int32, (num_vertices,))
    assert set(assignment.tolist()) == set(range(num_parts))
    if train_ids is not None:
        assert set(assignment[train_ids].tolist()) == set(range(num_parts))


@settings(max_examples=60)
@given(
    st.sampled_from(["random", "fennel"]), st.integers(1, 25), st.integers(0, 80), st.integers(0, 2**32), st.data()
)  # fmt: skip
def test_laws_on_any_graph(random_csc, method, num_vertices, num_edges, seed, data):
    indptr, indices = random_csc(seed, num_vertices, num_edges)
    kept = indptr.copy(), indices.copy()
    order = np.random.default_rng(seed).permutation(num_vertices)
    num_train = data.draw(st.integers(1, num_vertices))
    train = data.draw(st.sampled_from([None, order[:num_train]]))
    validation = data.draw(st.sampled_from([None, order[num_train : num_train + 3]]))
    num_parts = data.draw(st.integers(1, num_vertices if train is None else num_train))
    arguments: dict[str, Any] = {
        "method": method, "train_ids": train, "validation_ids": validation, "seed": seed,
        "stream_passes": data.draw(st.integers(1, 3)),
    }  # fmt: skip
    assignment = partition(indptr, indices, num_parts, **arguments)
    check_laws(assignment, num_vertices, num_parts, train)
    assert (partition(indptr, indices, num_parts, **arguments) == assignment).all(), "the same again"
    assert (indptr == kept[0]).all()
    assert (indices == kept[1]).all()


@METHODS
def test_roles_are_balanced_and_communities_kept_together(method):
    indptr, indices, community = communities(4, 60, seed=3)
    order = np.random.default_rng(0).permutation(240)
    train, validation = order[:40], order[40:64]
    split = {"train_ids": train, "validation_ids": validation}
    assignment = partition(indptr, indices, 4, method=method, seed=7, imbalance=0.1, **split, **QUICK)
    check_laws(assignment, 240, 4, train)
    quality = measure_quality(indptr, indices, assignment, 4, **split)
    for name in ("train", "validation", "other"):
        assert quality.balance[name] <= 1.1 + 1e-9, name
    if method == "random":
        assert quality.cut_fraction == pytest.approx(3 / 4, abs=0.05)
        return
    planted = measure_quality(indptr, indices, community.astype(np.int32), 4).cut_fraction
    assert quality.cut_fraction < planted + 0.1, "the planted communities need not balance training vertices"


@STREAMED
def test_wider_integers_change_nothing(random_csc, method):
    indptr, indices = random_csc(2, 60, 200)
    narrow, wide = (
        partition(indptr, indices.astype(dtype), 4, method=method, seed=7) for dtype in (np.int32, np.int64)
    )
    assert (narrow == wide).all()


def test_the_seed_moves_a_random_partition(random_csc):
    indptr, indices = random_csc(0, 50, 100)
    first, second = (partition(indptr, indices, 4, method="random", seed=seed) for seed in (1, 2))
    assert (first != second).any()


@STREAMED
def test_graphs_without_edges(method):
    indptr, indices = np.zeros(11, np.int64), np.empty(0, np.int32)
    assignment = partition(indptr, indices, 3, method=method)
    check_laws(assignment, 10, 3, None)
    assert np.bincount(assignment).max() == 4, "the mean, 3.3, rounded up"


@STREAMED
def test_as_many_parts_as_vertices(random_csc, method):
    indptr, indices = random_csc(1, 5, 20)
    assignment = partition(indptr, indices, 5, method=method, balance=("vertices",))
    assert sorted(assignment.tolist()) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("method", ["metis", "fennel", "random"])
def test_one_part_needs_no_method(random_csc, monkeypatch, method):
    for name in ("metis_search", "_fennel_assignment", "_random_assignment"):
        monkeypatch.setattr(partitioners, name, None)
    assert partition(*random_csc(0, 6, 9), 1, method=method).tolist() == [0] * 6


def test_every_option_reaches_its_method(random_csc, monkeypatch):
    calls: dict[str, Sequence[Any]] = {}
    dealt = np.arange(8, dtype=np.int32) % 2

    def recorded(name):
        return lambda *given: (calls.update({name: given}), dealt)[1]

    for name in ("metis_search", "_fennel_assignment"):
        monkeypatch.setattr(partitioners, name, recorded(name))
    indptr, indices = random_csc(0, 8, 20)

    def progress(stage, share):
        """Told how far it is."""

    for method, name in (("metis", "metis_search"), ("fennel", "_fennel_assignment")):
        options = PartitionOptions(method=method, balance=("vertices", "degree"), imbalance=0.25)
        assert (partition_graph(indptr, indices, options, progress=progress) == dealt).all()
        *_, weights, given, told = calls[name]
        assert weights.tolist() == [[1, degree] for degree in np.diff(indptr).tolist()]
        assert (given, told) == (options, progress)


INDPTR, INDICES = np.array([0, 1, 2, 4]), np.array([1, 0, 0, 1], np.int32)


@pytest.mark.parametrize(
    ("indptr", "indices", "message"),
    [
        ([], [], "the graph has no vertices: check the file that it was read from"),
        ([0], [], "the graph has no vertices"),
        ([1, 2, 3, 4], [0] * 4, "indptr must rise from 0 to the number of edges, 4; it runs from 1 to 4"),
        ([0, 1, 2, 3], [0] * 4, "indptr must rise from 0 to the number of edges, 4; it runs from 0 to 3"),
        ([0, 3, 2, 4], [0] * 4, "indptr must rise from 0 to the number of edges, 4"),
        ([0, 1, 2, 4], [0, 1, 2, 3], "neighbour ids run from 0 to 3, expected [0, 3)"),
        ([0, 1, 2, 4], [0, 1, 2, -1], "neighbour ids run from -1 to 2, expected [0, 3)"),
    ],
)
def test_broken_arrays_are_refused(indptr, indices, message):
    with pytest.raises(DataError, match=re.escape(message)):
        partition(np.array(indptr, np.int64), np.array(indices, np.int32), 2, method="random")


@METHODS
def test_too_few_vertices_are_refused(method):
    message = "3 vertices cannot be spread over 4 parts, each needs at least one: use at most 3 parts"
    with pytest.raises(DataError, match=message):
        partition(INDPTR, INDICES, 4, method=method)
    with pytest.raises(DataError, match=r"1 training vertices .* use at most 1 parts or a larger training"):
        partition(INDPTR, INDICES, 2, method=method, train_ids=np.array([2, 2]))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_ids": np.array([0, 3])}, "training id 3 at row 1 is outside [0, 3)"),
        ({"train_ids": np.array([-1])}, "training id -1 at row 0 is outside [0, 3)"),
        ({"validation_ids": np.array([7])}, "validation id 7 at row 0 is outside [0, 3)"),
        ({"train_ids": np.array([0, 1]), "validation_ids": np.array([1])}, "vertex 1 is both a training and a"),
    ],
)
def test_bad_ids_are_refused(changes, message):
    with pytest.raises(DataError, match=re.escape(message)):
        partition(INDPTR, INDICES, 1, method="random", **changes)


def test_many_passes_and_any_tolerance_keep_streaming_sound(random_csc):
    indptr, indices = random_csc(5, 40, 200)
    for imbalance, passes in ((0.03, 1200), (1e300, 3), (0.0, 70)):
        options = {"method": "fennel", "balance": ("vertices",), "imbalance": imbalance, "stream_passes": passes}
        assignment = partition(indptr, indices, 4, **options)
        check_laws(assignment, 40, 4, None)
        if imbalance < 1:
            assert np.bincount(assignment).max() <= 10


@given(st.lists(st.integers(0, 2), min_size=1, max_size=80), st.integers(1, 6), st.integers(0, 5))
def test_every_role_is_spread_evenly(roles, num_parts, seed):
    roles = np.array(roles)
    assignment = _random_assignment(roles, num_parts, seed=seed)
    for chosen in (roles >= 0, roles == 0, roles == 1, roles == 2):
        counts = np.bincount(assignment[chosen], minlength=num_parts)
        assert counts.max() - counts.min() <= 1

"""The sampler against a slow one in plain Python, and the laws that training relies on."""

import itertools
import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from windrow.comm.errors import DataError, RecipeError
from windrow.comm.random import GOLDEN, Stream, hash_ids, mix64, stream_key
from windrow.gnn.sampler import NeighborSampler

Lists = list[list[int]]


def random_lists(num_vertices, largest_degree, seed):
    """Neighbour lists with repeated entries, empty lists and a few hubs."""
    generator = np.random.default_rng(seed)
    degrees = generator.integers(0, largest_degree + 1, num_vertices)
    degrees[:: max(num_vertices // 3, 1)] *= 8
    return [generator.integers(0, num_vertices, degree).tolist() for degree in degrees]


def csc(lists, dtype=torch.int64):
    lengths = torch.tensor([0, *map(len, lists)])
    return lengths.cumsum(0), torch.tensor([source for list_ in lists for source in list_], dtype=dtype)


def reference(lists, fanouts, seeds, *, seed, epoch, step, original):
    """Frontier and, hop by hop, (sources, destinations, indptr, indices)."""
    local_ids = {vertex: local for local, vertex in enumerate(seeds)}
    hops = []
    for hop, fanout in enumerate(fanouts):
        key = stream_key(seed, Stream.SAMPLE, epoch, step, hop)
        destinations = list(local_ids)
        indptr, indices = [0], []
        for vertex in destinations:
            degree = len(lists[vertex])
            positions = list(range(degree))
            if 0 <= fanout < degree:
                state = int(hash_ids(key, np.array([original[vertex]]))[0])
                positions = []
                for draw in range(fanout):
                    last = degree - fanout + draw
                    position = mix64(state + (draw + 1) * GOLDEN) * (last + 1) >> 64
                    positions.append(last if position in positions else position)
            neighbours = [lists[vertex][position] for position in positions]
            indices += [local_ids.setdefault(neighbour, len(local_ids)) for neighbour in neighbours]
            indptr.append(len(indices))
        hops.append((len(local_ids), len(destinations), indptr, indices))
    return list(local_ids), hops


def as_lists(minibatch):
    return minibatch.input_ids.tolist(), [
        (block.num_src, block.num_dst, block.indptr.tolist(), block.indices.tolist())
        for block in reversed(minibatch.blocks)
    ]


def sampled(minibatch, hop):
    """Vertex ids that each destination of a hop sampled, in order."""
    block = minibatch.blocks[-1 - hop]
    ids = minibatch.input_ids.tolist()
    indptr, indices = block.indptr.tolist(), block.indices.tolist()
    return {ids[v]: [ids[source] for source in indices[indptr[v] : indptr[v + 1]]] for v in range(block.num_dst)}


@settings(max_examples=60)
@given(
    st.integers(1, 60),
    st.integers(0, 40),
    st.lists(st.sampled_from([-1, 1, 2, 5, 15, 80]), min_size=1, max_size=3),
    st.integers(0, 2**32),
    st.data(),
)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_sample_equals_the_slow_reference(dtype, num_vertices, largest_degree, fanouts, seed, data):
    lists = random_lists(num_vertices, largest_degree, seed)
    original = np.random.default_rng(seed).permutation(num_vertices).tolist()
    sampler = NeighborSampler(*csc(lists, dtype), fanouts, seed=seed, original_ids=torch.tensor(original))
    for step in range(3):
        seeds = data.draw(st.lists(st.integers(0, num_vertices - 1), unique=True))
        minibatch = sampler.sample(torch.tensor(seeds, dtype=torch.int64), epoch=4, step=step)
        expected = reference(lists, fanouts, seeds, seed=seed, epoch=4, step=step, original=original)
        assert as_lists(minibatch) == expected
        assert minibatch.seeds.tolist() == seeds
        assert minibatch.input_ids.dtype == torch.int64
        assert all(block.indices.dtype == torch.int32 for block in minibatch.blocks)


def test_data_of_edges_comes_along():
    indptr, indices = csc(random_lists(50, 90, 1))
    targets = torch.arange(50).repeat_interleave(indptr.diff())
    weight = (100 * targets + indices).float()
    attributes = torch.stack([weight, -weight], 1)
    sampler = NeighborSampler(indptr, indices, [3, 70, -1], seed=1, edge_weight=weight, edge_attr=attributes)
    plain = NeighborSampler(indptr, indices, [3, 70, -1], seed=1)
    seeds = torch.tensor([4, 0])
    minibatch = sampler.sample(seeds, epoch=1, step=2)
    assert as_lists(minibatch) == as_lists(plain.sample(seeds, epoch=1, step=2))
    left_out = torch.stack([indices[::3], targets[::3]])
    for block in (*minibatch.blocks, *minibatch.without(left_out).blocks):
        source, target = minibatch.input_ids[block.edge_index]
        assert torch.equal(block.edge_weight, (100 * target + source).float())
        assert torch.equal(block.edge_attr, torch.stack([block.edge_weight, -block.edge_weight], 1))


@pytest.mark.parametrize(
    ("degree", "fanout"), [(5, 2), (7, 3), (63, 2), (64, 2), (65, 2), (64, 63), (65, 64), (130, 1)]
)
def test_every_subset_of_a_list_is_equally_likely(degree, fanout):
    """Chi-square over all subsets of so many neighbours, on both hops, for lists around the length of a word."""
    num_vertices = 400
    lists = [[(vertex + 1 + entry) % num_vertices for entry in range(degree)] for vertex in range(num_vertices)]
    sampler = NeighborSampler(*csc(lists), [fanout, fanout], seed=11)
    subsets = list(itertools.combinations(range(degree), fanout))
    places = {subset: place for place, subset in enumerate(subsets)}
    for hop in range(2):
        counts = np.zeros(len(subsets))
        for step in range(30 * len(subsets) // num_vertices + 1):
            minibatch = sampler.sample(torch.arange(num_vertices), epoch=0, step=step)
            for vertex, neighbours in sampled(minibatch, hop).items():
                chosen = sorted((neighbour - vertex - 1) % num_vertices for neighbour in neighbours)
                counts[places[tuple(chosen)]] += 1
        expected = counts.sum() / len(subsets)
        statistic = ((counts - expected) ** 2).sum() / expected
        freedom = len(subsets) - 1
        assert abs(statistic - freedom) < 4.5 * np.sqrt(2 * freedom)


def test_a_vertex_samples_the_same_alone_in_a_half_and_in_the_whole_batch():
    lists = random_lists(400, 60, seed=2)
    sampler = NeighborSampler(*csc(lists), [6, 3], seed=9)
    seeds = torch.from_numpy(np.random.default_rng(0).permutation(400)[:100])
    whole = sampler.sample(seeds, epoch=1, step=2)
    pieces = seeds[:50], seeds[50:], seeds[7:8], seeds.flip(0)
    parts = [sampler.sample(piece, epoch=1, step=2) for piece in pieces]
    for hop in range(2):
        expected = sampled(whole, hop)
        for part in parts:
            assert all(expected[vertex] == neighbours for vertex, neighbours in sampled(part, hop).items())


def test_a_renumbered_graph_gives_the_same_sample_under_other_names():
    lists = random_lists(200, 40, seed=3)
    new_to_old = np.random.default_rng(4).permutation(200)
    old_to_new = np.argsort(new_to_old)
    renumbered = [[int(old_to_new[source]) for source in lists[old]] for old in new_to_old]
    seeds = torch.arange(0, 200, 9)
    plain = NeighborSampler(*csc(lists), [8, 3], seed=1).sample(seeds, epoch=3, step=8)
    sampler = NeighborSampler(*csc(renumbered), [8, 3], seed=1, original_ids=torch.from_numpy(new_to_old))
    renamed = sampler.sample(torch.from_numpy(old_to_new)[seeds], epoch=3, step=8)
    assert torch.from_numpy(new_to_old)[renamed.input_ids].equal(plain.input_ids)
    assert as_lists(renamed)[1] == as_lists(plain)[1]


def test_a_graph_without_vertices_or_edges_can_be_sampled():
    nothing = torch.tensor([], dtype=torch.int32)
    NeighborSampler(torch.zeros(1, dtype=torch.int64), nothing, [2], seed=0).sample(nothing.long(), epoch=0, step=0)
    edgeless = NeighborSampler(*csc([[], [], []]), [2, -1], seed=0)
    minibatch = edgeless.sample(torch.tensor([2, 0]), epoch=0, step=0)
    assert as_lists(minibatch) == ([2, 0], [(2, 2, [0, 0, 0], [])] * 2)


def test_working_memory_survives_refused_seeds_and_running_out_of_numbers():
    lists = random_lists(50, 10, seed=6)
    sampler = NeighborSampler(*csc(lists), [3, 3], seed=2)
    seeds = torch.arange(0, 50, 5)
    expected = as_lists(sampler.sample(seeds, epoch=0, step=0))
    with pytest.raises(DataError):
        sampler.sample(torch.tensor([4, 5, 4]), epoch=0, step=0)
    assert as_lists(sampler.sample(seeds, epoch=0, step=0)) == expected
    kept = sampler._workspace
    kept.base = 2**31 - 130
    for _ in range(5):
        assert as_lists(sampler.sample(seeds, epoch=0, step=0)) == expected
    assert kept.base < 300


def test_threads_sample_what_one_thread_samples():
    sampler = NeighborSampler(*csc(random_lists(2000, 30, seed=7)), [5, 5], seed=2)
    batches = torch.from_numpy(np.random.default_rng(1).permutation(2000)).split(100)
    expected = [as_lists(sampler.sample(batch, epoch=0, step=i)) for i, batch in enumerate(batches)]
    drawn: dict[int, object] = {}

    def work(first):
        for i in range(first, len(batches), 3):
            drawn[i] = as_lists(sampler.sample(batches[i], epoch=0, step=i))

    threads = [threading.Thread(target=work, args=(first,)) for first in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [drawn[i] for i in range(len(batches))] == expected


def test_strided_tensors_are_accepted():
    lists = random_lists(40, 10, seed=8)
    indptr, indices = csc(lists)
    sampler = NeighborSampler(indptr, torch.stack([indices, indices], 1)[:, 0], [3], seed=0)
    every_other = torch.arange(40)[::2]
    expected = NeighborSampler(indptr, indices, [3], seed=0).sample(every_other.clone(), epoch=0, step=0)
    assert as_lists(sampler.sample(every_other, epoch=0, step=0)) == as_lists(expected)


@pytest.mark.parametrize(
    ("seeds", "message"),
    [
        (torch.tensor([3, 1, 3]), "seed 3 stands at position 2"),
        (torch.tensor([0, -1]), "seed -1 at position 1"),
        (torch.tensor([5]), "seed 5 at position 0 is not a vertex of 0..4"),
        (torch.tensor([1], dtype=torch.int32), "seeds is torch.int32"),
        (torch.tensor([[1]]), r"shape \[1, 1\]"),
    ],
)
def test_bad_seeds_are_refused(seeds, message):
    sampler = NeighborSampler(*csc([[1]] * 5), [2], seed=0)
    with pytest.raises(DataError, match=message):
        sampler.sample(seeds, epoch=0, step=0)


@pytest.mark.parametrize("fanouts", [[], [0], [5, -2]])
def test_bad_fanouts_are_refused(fanouts):
    with pytest.raises(RecipeError, match="fanouts"):
        NeighborSampler(*csc([[0]]), fanouts, seed=0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"indices": torch.tensor([0.0])}, r"indices is torch\.float32"),
        ({"indptr": torch.tensor([0, 1, 3], dtype=torch.int32)}, r"indptr is torch\.int32"),
        ({"indptr": torch.empty(0, dtype=torch.int64)}, "indptr has 0 entries"),
        ({"original_ids": torch.arange(3)}, "original_ids has 3 entries for 2 vertices"),
    ],
)
def test_bad_arrays_are_refused(change, message):
    indptr, indices = csc([[0], [0, 1]])
    with pytest.raises(DataError, match=message):
        NeighborSampler(**({"indptr": indptr, "indices": indices, "fanouts": [1], "seed": 0} | change))


def test_sampling_a_real_graph_with_heavy_hubs(shared_data):
    path = shared_data / "graphs" / "ego_twitter.npz"
    if not path.is_file():
        pytest.skip(f"no {path.name} among the extra data sets")
    edges = np.load(path, allow_pickle=False)["edges"]
    ends = np.concatenate((edges, edges[:, ::-1]))
    ends = ends[np.lexsort((ends[:, 0], ends[:, 1]))]
    indptr = torch.from_numpy(np.searchsorted(ends[:, 1], np.arange(ends.max() + 2)))
    indices = torch.from_numpy(np.ascontiguousarray(ends[:, 0]).astype(np.int64))
    seeds = torch.arange(0, 80_000, 80)
    wide = NeighborSampler(indptr, indices, [15, 10, 5], seed=0).sample(seeds, epoch=0, step=0)
    narrow = NeighborSampler(indptr, indices.int(), [15, 10, 5], seed=0).sample(seeds, epoch=0, step=0)
    assert wide.input_ids.equal(narrow.input_ids)
    for one, other, fanout in zip(wide.blocks, narrow.blocks, [5, 10, 15], strict=True):
        assert one.indices.equal(other.indices)
        degrees = indptr.diff()[wide.input_ids[: one.num_dst]]
        assert one.degrees.equal(degrees.clamp(max=fanout))

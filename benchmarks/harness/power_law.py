"""Synthetic graphs of any size with skewed degrees, and with communities besides.

Every number is a hash of (seed, what it is for, its position), so a graph depends on its arguments alone.
"""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from benchmarks.harness.graph_kernels import csc_from_pairs, draw_features, draw_pairs
from windrow.comm.errors import DataError, RecipeError
from windrow.comm.random import Stream, hash_ids, stream_key
from windrow.gnn.build import assemble_graph
from windrow.gnn.graph import Graph
from windrow.gnn.vertex_data import VertexSplit

__all__ = ["power_law_communities", "power_law_graph"]

EXPONENT = 2.5
"""Of the power law of degrees: 2 to 3 in most networks."""

MAX_ROUNDS = 8

MAX_COMMUNITY_ROUNDS = 64
"""Times that edges are drawn anew in place of repeats. Each round leaves a few in a hundred of what was missing; so
many pass only where there is hardly room for another edge."""

SIZE_SKEW = 0.5
"""The community of rank r has a size proportional to r ** -0.5: the largest of C has sqrt(C) / 2 times the mean size,
the smallest half of it."""

SIGNAL = 0.5
"""Length of a class's direction, in standard deviations of the noise per feature: too weak to tell the class of one
vertex, clear once averaged over neighbours."""

BISECTIONS = 100
"""Halvings that find a number to the last bit."""


def power_law_graph(num_vertices: int, num_edges: int, *, seed: int) -> Graph:
    """Generate an undirected graph, without features and labels, whose degrees follow a power law.

    Both ends of an edge are drawn independently, vertex of rank r with probability proportional to
    r ** (-1 / (`EXPONENT` - 1)), so that the number of vertices of degree k falls as k ** -`EXPONENT` (Chung and
    Lu, The Average Distances in Random Graphs with Given Expected Degrees, PNAS 2002). Self-loops and repeats
    are drawn again. Ranks are shuffled, so that a vertex id tells nothing about its degree.

    Args:
        num_vertices: N.
        num_edges: E, directed edges in the graph: twice the undirected ones, hence even; exact.
        seed: another seed gives another graph.

    Raises:
        RecipeError: an argument is out of range.
        DataError: so many edges do not fit among so few vertices.
    """
    if num_vertices < 2 or num_edges < 0 or num_edges % 2:
        raise RecipeError(
            f"num_vertices {num_vertices}, num_edges {num_edges}: use at least 2, and an even number from 0."
        )
    vertices = _shuffled(num_vertices, seed, 0)
    keys = _distinct_pairs(num_vertices, num_edges // 2, 1 / (EXPONENT - 1), seed)
    return assemble_graph(vertices[keys // num_vertices], vertices[keys % num_vertices], num_vertices)


def power_law_communities(
    num_vertices: int,
    num_edges: int,
    *,
    seed: int,
    num_communities: int,
    mixing: float,
    decay: float | None = None,
    exponent: float = EXPONENT,
    num_features: int = 0,
    num_classes: int = 8,
    train_share: float = 0.01,
) -> Graph:
    """Generate an undirected graph with communities whose degrees follow a power law.

    A degree-corrected stochastic block model (Karrer and Newman, Stochastic blockmodels and community structure in
    networks, 2011) with the sizes and the mixing of Lancichinetti, Fortunato and Radicchi (Benchmark graphs for
    testing community detection algorithms, 2008). An edge takes its first end from all vertices and its second from
    the same community, or, with probability `mixing`, from the others, each by weight. Weights fall as
    rank ** (-1 / (exponent - 1)) inside each community, so that the number of vertices of degree k falls as
    k ** -exponent, and stop where two hubs of a community of n vertices would be drawn together more than once: at an
    expected degree of sqrt(n * mean degree). Self-loops and repeats are drawn again. Vertices are shuffled, so that
    an id tells nothing about degree or community.

    Args:
        num_vertices: N.
        num_edges: E, stored edges of the graph: twice the undirected ones, hence even; exact.
        seed: another seed gives another graph.
        num_communities: C; the largest has about sqrt(C) / 2 times as many vertices as the mean, the smallest half as
            many.
        mixing: share of the edges that leave their community, from 0 to 1; above 0 there must be two communities.
        decay: above 1: communities stand on a ring, and edges that leave one end at a distance d with density
            d ** -decay, as acquaintances do (Kleinberg, Navigation in a small world, Nature 2000), so that a part of
            the graph has few neighbours beyond its border. With 2, 4 parts and fanouts 15, 10, 5, a cache of alpha
            .1, .2, .5 and 1 leaves 73, 57, 29 and 9 % of the remote rows; of ogbn-products it leaves 64, 48, 23 and
            8 % (SALIENT++). None: they end anywhere, and it leaves 87, 77, 56 and 33 %.
        exponent: above 2; 2 to 3 in most networks, smaller has heavier hubs.
        num_features: F; columns of noise plus a random direction of the vertex's class; 0 for no features.
        num_classes: the label of a vertex is its community modulo this, from 1 to C.
        train_share: share of the vertices that train, as many validate, and as many test; above 0, at most 1/3.

    Returns:
        A graph with labels and splits.

    Raises:
        RecipeError: an argument is out of range.
        DataError: so many edges do not fit.

    Cost:
        A sort of E / 2 numbers. Peak memory about 9 bytes for each stored edge, 40 for each vertex, and the features.
    """
    laws = (
        (num_vertices >= 2, f"num_vertices {num_vertices}: use at least 2"),
        (num_edges >= 0 and num_edges % 2 == 0, f"num_edges {num_edges}: use an even number from 0"),
        (1 <= num_communities <= num_vertices, f"num_communities {num_communities}: use 1 to the number of vertices"),
        (0 <= mixing <= 1, f"mixing {mixing}: use a share from 0 to 1"),
        (mixing == 0 or num_communities > 1, f"mixing {mixing}: one community has no others; use 0"),
        (decay is None or decay > 1, f"decay {decay}: use a number above 1, or None"),
        (exponent > 2, f"exponent {exponent}: use a number above 2"),
        (num_features >= 0, f"num_features {num_features}: use at least 0"),
        (
            1 <= num_classes <= num_communities,
            f"num_classes {num_classes}: use 1 to the number of communities, so that each has vertices",
        ),
        (
            1 <= round(num_vertices * train_share) <= num_vertices // 3,
            f"train_share {train_share}: use a share of at least one vertex and at most a third",
        ),
    )
    for holds, message in laws:
        if not holds:
            raise RecipeError(f"{message}.")
    starts = _community_starts(num_vertices, num_communities)
    vertices = _shuffled(num_vertices, seed, 10)
    community_of = np.repeat(np.arange(num_communities, dtype=np.int32), np.diff(starts))
    indptr = np.empty(num_vertices + 1, np.int64)
    indices: npt.NDArray[np.integer] = np.empty(num_edges, np.int32 if num_vertices < 2**31 - 1 else np.int64)
    skew = 1 / (exponent - 1)
    pairs = _distinct_community_pairs(
        num_edges // 2, starts, community_of, vertices, skew=skew, mixing=mixing, decay=decay or 0.0, seed=seed
    )
    csc_from_pairs(pairs, indptr, indices)
    del pairs
    labels = np.empty(num_vertices, np.int64)
    labels[vertices] = community_of % num_classes
    count, order = round(num_vertices * train_share), _shuffled(num_vertices, seed, 16)
    split = VertexSplit(*(torch.from_numpy(np.sort(order[i * count : (i + 1) * count])) for i in range(3)))
    graph = Graph(
        indptr=torch.from_numpy(indptr),
        indices=torch.from_numpy(indices),
        features=_community_features(labels, num_classes, num_features, seed) if num_features else None,
        labels=torch.from_numpy(labels),
        task="single-label",
        num_classes=num_classes,
        **split._asdict(),
    )
    graph.validate()
    return graph


def _community_starts(num_vertices: int, num_communities: int) -> npt.NDArray[np.int64]:
    """Share N places out: int64 [C + 1], at least one each."""
    shares = np.arange(1, num_communities + 1) ** -SIZE_SKEW
    ends = np.round(np.cumsum(shares) / shares.sum() * (num_vertices - num_communities)).astype(np.int64)
    return np.concatenate(([0], ends + np.arange(1, num_communities + 1)))


def _largest_weights(
    sizes: npt.NDArray[np.int64], mean_degree: float, skew: float
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Find where the weights of each community stop: (c, h), float64 [C] each.

    The density of weights over the members, x from 0 to 1, is h * (x / c) ** -skew from c on and h before, with
    mean 1. This finds c for the h that is asked for.
    """
    heights = np.maximum(np.sqrt(sizes / max(mean_degree, 1.0)), 1.0)
    low, high = np.zeros(len(sizes)), np.ones(len(sizes))
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        # The mean weight, which grows with c.
        mean = heights * (middle + middle**skew * (1 - middle ** (1 - skew)) / (1 - skew))
        low, high = np.where(mean < 1, middle, low), np.where(mean < 1, high, middle)
    return high, heights


def _distinct_community_pairs(
    wanted: int,
    starts: npt.NDArray[np.int64],
    community_of: npt.NDArray[np.int32],
    vertices: npt.NDArray[np.int64],
    *,
    skew: float,
    mixing: float,
    decay: float,
    seed: int,
) -> npt.NDArray[np.int64]:
    """Draw edges until there are `wanted` different ones, each as low * N + high; ascending."""
    num_vertices = len(vertices)
    keys = np.array([stream_key(seed, Stream.GENERATE, purpose) for purpose in range(11, 16)], np.uint64)
    capped, heights = _largest_weights(np.diff(starts), 2 * wanted / num_vertices, skew)
    pairs = np.empty(0, np.int64)
    late = np.empty(0, np.int64)
    drawn = 0
    for _ in range(MAX_COMMUNITY_ROUNDS):
        missing = wanted - pairs.size - late.size
        if missing == 0:
            break
        fresh = np.empty(missing, np.int64)
        written = draw_pairs(drawn, keys, starts, community_of, capped, heights, vertices, skew, mixing, decay, fresh)
        drawn += missing
        fresh = _distinct(fresh[:written])
        # The first round brings nearly all, and is not sorted or copied again for the few that come late.
        if drawn == missing:
            pairs = fresh
        else:
            late = _distinct(np.concatenate((late, fresh[~_found(fresh, pairs)])))
    else:
        raise DataError(
            f"{2 * wanted} edges with so skewed degrees do not fit among {num_vertices} vertices in {len(starts) - 1} "
            f"communities: {2 * (pairs.size + late.size)} were found in {drawn} draws. Ask for fewer edges, fewer "
            "communities or a larger exponent."
        )
    return np.insert(pairs, np.searchsorted(pairs, late), late) if late.size else pairs


def _found(keys: npt.NDArray[np.int64], sorted_keys: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Whether each key is among the sorted ones."""
    if not sorted_keys.size:
        return np.zeros(keys.size, dtype=bool)
    places = np.minimum(np.searchsorted(sorted_keys, keys), sorted_keys.size - 1)
    found: npt.NDArray[np.bool_] = sorted_keys[places] == keys
    return found


def _community_features(labels: npt.NDArray[np.int64], num_classes: int, num_features: int, seed: int) -> Tensor:
    positions = np.arange(num_classes * num_features)
    radius = np.sqrt(-2 * np.log1p(-_uniform(positions, seed, 5)))
    normal = (radius * np.cos(2 * np.pi * _uniform(positions, seed, 6))).astype(np.float32)
    directions = (SIGNAL * normal).reshape(num_classes, num_features)
    features = np.empty((len(labels), num_features), np.float32)
    draw_features(np.uint64(stream_key(seed, Stream.GENERATE, 17)), labels, directions, features)
    return torch.from_numpy(features)


def _distinct_pairs(num_vertices: int, wanted: int, skew: float, seed: int) -> npt.NDArray[np.int64]:
    """Draw exactly `wanted` pairs of ranks low < high, each as low * N + high."""
    keys = np.empty(0, dtype=np.int64)
    drawn = 0
    for doubling in range(MAX_ROUNDS):
        batch = np.arange(drawn, drawn + (wanted - keys.size + wanted // 10 + 16) * 2**doubling)
        drawn += batch.size
        # The inverse of the distribution with density proportional to x ** -skew on (0, 1], scaled to ranks.
        first, second = (
            (num_vertices * _uniform(batch, seed, end) ** (1 / (1 - skew))).astype(np.int64) for end in (7, 8)
        )
        fresh = np.minimum(first, second) * num_vertices + np.maximum(first, second)
        keys = _distinct(np.concatenate((keys, fresh[first != second])))
        if keys.size >= wanted:
            surplus = keys.size - wanted
            draws = hash_ids(stream_key(seed, Stream.GENERATE, 9), keys)
            dropped = np.argpartition(draws, min(surplus, keys.size - 1))[:surplus]
            return np.delete(keys, dropped)
    raise DataError(
        f"{2 * wanted} edges with so skewed degrees do not fit among {num_vertices} vertices: "
        f"{2 * keys.size} were found in {drawn} draws. Ask for fewer edges, more vertices or a larger exponent."
    )


def _uniform(positions: npt.NDArray[np.int64], seed: int, purpose: int) -> npt.NDArray[np.float64]:
    """Draw one number in [0, 1) for each position: the top 53 bits of a hash of it, the seed and the purpose."""
    hashes = hash_ids(stream_key(seed, Stream.GENERATE, purpose), positions) >> np.uint64(11)
    return hashes.astype(np.float64) * 2.0**-53


def _shuffled(count: int, seed: int, purpose: int) -> npt.NDArray[np.int64]:
    """Put 0..count - 1 in a random order."""
    return np.argsort(hash_ids(stream_key(seed, Stream.GENERATE, purpose), np.arange(count)))


def _distinct(keys: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Sort in place and drop repeats: numpy.unique gives the same, far more slowly."""
    keys.sort()
    first = np.concatenate((np.ones(min(keys.size, 1), dtype=bool), keys[1:] != keys[:-1]))
    return keys if first.all() else keys[first]

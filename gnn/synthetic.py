"""Synthetic graphs: a power-law graph of any size for benchmarks, a community graph that a model can learn.

Every number is a hash of (seed, what it is for, its position), so a graph depends on its arguments alone.
"""

from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from windrow.comm.errors import DataError, RecipeError
from windrow.comm.random import Stream, hash_ids, stream_key
from windrow.gnn.build import assemble_graph
from windrow.gnn.graph import Graph
from windrow.gnn.vertex_data import SplitOptions

__all__ = [
    "below",
    "community_graph",
    "distinct",
    "power_law_graph",
    "random_features",
    "shuffled",
    "uniform",
]

MAX_ROUNDS = 8
NUMBERS_PER_CHUNK = 1 << 20
"""Features drawn at a time: a few arrays of so many numbers, 8 bytes each, stay small and in the cache."""


def power_law_graph(
    num_vertices: int, num_edges: int, *, seed: int, exponent: float = 2.5, num_features: int = 0
) -> Graph:
    """Generate an undirected graph whose degrees follow a power law.

    Both ends of an edge are drawn independently, vertex of rank r with probability proportional to
    r ** (-1 / (exponent - 1)), so that the number of vertices of degree k falls as k ** -exponent (Chung and
    Lu, The Average Distances in Random Graphs with Given Expected Degrees, PNAS 2002). Self-loops and repeats
    are drawn again. Ranks are shuffled, so that a vertex id tells nothing about its degree.

    Args:
        num_vertices: N.
        num_edges: E, directed edges in the graph: twice the undirected ones, hence even; exact.
        seed: another seed gives another graph.
        exponent: above 2; 2 to 3 in most networks, smaller has heavier hubs.
        num_features: columns of standard normal features; 0 for none.

    Returns:
        A graph without labels.

    Raises:
        RecipeError: an argument is out of range.
        DataError: so many edges do not fit among so few vertices.

    Cost:
        A sort of E / 2 numbers and one of E.
    """
    if num_vertices < 2 or num_edges < 0 or num_edges % 2 or exponent <= 2 or num_features < 0:
        raise RecipeError(
            f"num_vertices {num_vertices}, num_edges {num_edges}, exponent {exponent}, num_features "
            f"{num_features}: use at least 2, an even number from 0, above 2, and at least 0."
        )
    vertices = shuffled(num_vertices, seed, 0)
    keys = _distinct_pairs(num_vertices, num_edges // 2, 1 / (exponent - 1), seed)
    return assemble_graph(
        vertices[keys // num_vertices],
        vertices[keys % num_vertices],
        num_vertices,
        features=random_features(num_vertices, num_features, seed=seed) if num_features else None,
    )


def community_graph(
    num_vertices: int,
    num_classes: int,
    *,
    seed: int,
    average_degree: float = 10.0,
    homophily: float = 0.8,
    num_features: int = 16,
    signal: float = 0.5,
    task: Literal["single-label", "binary", "multi-label"] = "single-label",
    split: SplitOptions | None = None,
) -> Graph:
    """Generate a graph of equal communities whose labels a graph network can learn (stochastic block model).

    Vertex v belongs to community v modulo `num_classes`. Features are standard normal noise plus `signal`
    times a random direction of the community: too weak to classify one vertex alone, clear once averaged over
    neighbours.

    Args:
        num_vertices: N, at least `num_classes`.
        num_classes: number of communities, at least 2.
        seed: another seed gives another graph.
        average_degree: edges per vertex before repeats are removed.
        homophily: share of the edges drawn inside a community; the others end anywhere.
        num_features: F.
        signal: length of a community's direction, in standard deviations of the noise per feature.
        task: "multi-label" gives each vertex its own class and the next; "binary" needs two communities.
        split: shares of the splits; None for half to train and a quarter each to validate and test.

    Returns:
        A graph with features, labels and splits.

    Raises:
        RecipeError: an argument is out of range.
    """
    if num_classes < 2 or num_vertices < num_classes or average_degree < 0 or not 0 <= homophily <= 1:
        raise RecipeError(
            f"num_vertices {num_vertices}, num_classes {num_classes}, average_degree {average_degree}, "
            f"homophily {homophily}: use at least as many vertices as classes, at least 2 classes, a degree "
            "from 0 and a share between 0 and 1."
        )
    draws = np.arange(round(num_vertices * average_degree / 2))
    sources = below(num_vertices, draws, seed, 2)
    community = sources % num_classes
    community_size = (num_vertices - community + num_classes - 1) // num_classes
    inside = community + num_classes * (uniform(draws, seed, 3) * community_size).astype(np.int64)
    anywhere = below(num_vertices, draws, seed, 3)
    destinations = np.where(uniform(draws, seed, 4) < homophily, inside, anywhere)

    classes = torch.arange(num_vertices) % num_classes
    directions = random_features(num_classes, num_features, seed=seed + 1)
    labels: Tensor = classes
    if task == "multi-label":
        labels = torch.eye(num_classes)[classes] + torch.eye(num_classes)[(classes + 1) % num_classes]
    return assemble_graph(
        sources,
        destinations,
        num_vertices,
        features=random_features(num_vertices, num_features, seed=seed) + signal * directions[classes],
        labels=labels,
        task=task,
        self_loops="remove",
        random_split_options=split or SplitOptions(kind="fractions"),
        split_seed=seed,
    )


def random_features(num_vertices: int, num_features: int, *, seed: int) -> Tensor:
    """Draw standard normal features (Box and Muller, 1958).

    Args:
        num_vertices: N.
        num_features: F.
        seed: another seed gives other features.

    Returns:
        float32 [N, F].
    """
    features = np.empty(num_vertices * num_features, dtype=np.float32)
    for start in range(0, features.size, NUMBERS_PER_CHUNK):
        positions = np.arange(start, min(start + NUMBERS_PER_CHUNK, features.size))
        radius = np.sqrt(-2 * np.log1p(-uniform(positions, seed, 5)))
        angle = 2 * np.pi * uniform(positions, seed, 6)
        features[start : start + positions.size] = radius * np.cos(angle)
    return torch.from_numpy(features).reshape(num_vertices, num_features)


def _distinct_pairs(num_vertices: int, wanted: int, skew: float, seed: int) -> npt.NDArray[np.int64]:
    """Draw exactly `wanted` pairs of ranks low < high, each as low * N + high."""
    keys = np.empty(0, dtype=np.int64)
    drawn = 0
    for doubling in range(MAX_ROUNDS):
        batch = np.arange(drawn, drawn + (wanted - keys.size + wanted // 10 + 16) * 2**doubling)
        drawn += batch.size
        first, second = (_rank(num_vertices, skew, uniform(batch, seed, end)) for end in (7, 8))
        fresh = np.minimum(first, second) * num_vertices + np.maximum(first, second)
        keys = distinct(np.concatenate((keys, fresh[first != second])))
        if keys.size >= wanted:
            surplus = keys.size - wanted
            draws = hash_ids(stream_key(seed, Stream.GENERATE, 9), keys)
            dropped = np.argpartition(draws, min(surplus, keys.size - 1))[:surplus]
            return np.delete(keys, dropped)
    raise DataError(
        f"{2 * wanted} edges with so skewed degrees do not fit among {num_vertices} vertices: "
        f"{2 * keys.size} were found in {drawn} draws. Ask for fewer edges, more vertices or a larger exponent."
    )


def _rank(num_vertices: int, skew: float, uniform: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Invert the distribution with density proportional to x ** -skew on (0, 1], scaled to ranks."""
    return (num_vertices * uniform ** (1 / (1 - skew))).astype(np.int64)


def uniform(positions: npt.NDArray[np.int64], seed: int, purpose: int) -> npt.NDArray[np.float64]:
    """Draw one number in [0, 1) for each position.

    Args:
        positions: int64, any shape.
        seed: another seed gives other numbers.
        purpose: and so does another purpose.

    Returns:
        float64 of the same shape: the top 53 bits of a hash.
    """
    hashes = hash_ids(stream_key(seed, Stream.GENERATE, purpose), positions) >> np.uint64(11)
    return hashes.astype(np.float64) * 2.0**-53


def below(limit: int, positions: npt.NDArray[np.int64], seed: int, purpose: int) -> npt.NDArray[np.int64]:
    """Draw one integer in [0, limit) for each position; see `uniform`.

    Args:
        limit: at least 1, far below 2**53.
        positions: int64, any shape.
        seed: another seed gives other numbers.
        purpose: and so does another purpose.

    Returns:
        int64 of the same shape.
    """
    return (uniform(positions, seed, purpose) * limit).astype(np.int64)


def shuffled(count: int, seed: int, purpose: int) -> npt.NDArray[np.int64]:
    """Put 0..count - 1 in a random order.

    Args:
        count: how many.
        seed: another seed gives another order.
        purpose: and so does another purpose.

    Returns:
        int64 [count], a permutation.

    Cost:
        One sort of `count` numbers.
    """
    return np.argsort(hash_ids(stream_key(seed, Stream.GENERATE, purpose), np.arange(count)))


def distinct(keys: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Sort and drop repeats: numpy.unique gives the same, far more slowly.

    Args:
        keys: int64 [n]; sorted in place.

    Returns:
        int64, ascending without repeats.
    """
    keys.sort()
    first = np.concatenate((np.ones(min(keys.size, 1), dtype=bool), keys[1:] != keys[:-1]))
    return keys if first.all() else keys[first]

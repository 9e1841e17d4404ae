"""Synthetic graphs with communities that a model can learn, for examples and tests."""

import numpy as np
import torch
from torch import Tensor

from windrow.comm.errors import RecipeError
from windrow.gnn.build import VertexRows, assemble_graph, assemble_typed_graph
from windrow.gnn.graph import Graph, Task
from windrow.gnn.vertex_data import SplitOptions

__all__ = ["community_graph", "typed_community_graph"]


def community_graph(
    num_vertices: int,
    num_classes: int,
    *,
    seed: int,
    average_degree: float = 10.0,
    homophily: float = 0.8,
    num_features: int = 16,
    signal: float = 0.5,
    task: Task = "single-label",
    split: SplitOptions | None = None,
) -> Graph:
    """Generate a graph of equal communities whose labels a graph network can learn (stochastic block model).

    Vertex v belongs to community v modulo `num_classes`. Features are standard normal noise plus `signal` times a
    random direction of the community: too weak to classify one vertex alone, clear once averaged over neighbours.

    Args:
        num_vertices: N, at least `num_classes`; else RecipeError.
        num_classes: number of communities, at least 2.
        seed: another seed gives another graph.
        average_degree: edges per vertex before repeats are removed.
        homophily: share of the edges drawn inside a community; the others end anywhere.
        num_features: F.
        signal: length of a community's direction, in standard deviations of the noise per feature.
        task: "multi-label" gives each vertex its own class and the next; "binary" needs two communities; "regression"
            asks for the community's number.
        split: shares of the splits; None for half to train and a quarter each to validate and test.
    """
    if num_classes < 2 or num_vertices < num_classes or average_degree < 0 or not 0 <= homophily <= 1:
        raise RecipeError(
            f"num_vertices {num_vertices}, num_classes {num_classes}, average_degree {average_degree}, "
            f"homophily {homophily}: use at least as many vertices as classes, at least 2 classes, a degree "
            "from 0 and a share between 0 and 1."
        )
    generator = np.random.default_rng(seed)
    num_draws = round(num_vertices * average_degree / 2)
    sources, anywhere = generator.integers(num_vertices, size=(2, num_draws))
    community = sources % num_classes
    community_size = (num_vertices - community + num_classes - 1) // num_classes
    inside = community + num_classes * generator.integers(community_size)
    destinations = np.where(generator.random(num_draws) < homophily, inside, anywhere)

    classes = torch.arange(num_vertices) % num_classes
    noise = torch.from_numpy(generator.standard_normal((num_vertices, num_features), np.float32))
    directions = torch.from_numpy(generator.standard_normal((num_classes, num_features), np.float32))
    labels: Tensor = classes
    if task == "multi-label":
        labels = torch.eye(num_classes)[classes] + torch.eye(num_classes)[(classes + 1) % num_classes]
    return assemble_graph(
        sources,
        destinations,
        num_vertices,
        features=noise + signal * directions[classes],
        labels=labels,
        task=task,
        self_loops="remove",
        random_split_options=split or SplitOptions(kind="fractions"),
        split_seed=seed,
    )


def typed_community_graph(
    num_papers: int, num_classes: int, *, seed: int, signal: float = 0.3, split: SplitOptions | None = None
) -> Graph:
    """Generate a graph of papers, authors and venues, whose papers' labels a typed graph network can learn.

    Vertices of each type belong to communities as in `community_graph`, and a paper's is its label. Papers have weak
    features of 16 columns, half as many authors strong ones of 8, and venues, four of each community, none. An author
    writes 4 papers, of the own community 8 times out of 10, and every paper is in a venue of the own one 6 times out of
    10; papers cite 4 papers of the own community 7 times out of 10, and are mentioned by 12 whichever they are: sums
    over edges of all types drown in these.

    Args:
        num_papers: at least 2 * `num_classes`; else RecipeError.
        num_classes: number of communities, at least 2.
        seed: another seed gives another graph.
        signal: length of a community's direction in papers' features, in standard deviations of the noise.
        split: shares of the splits; None for half to train and a quarter each to validate and test.
    """
    if num_classes < 2 or num_papers < 2 * num_classes:
        raise RecipeError(
            f"num_papers {num_papers}, num_classes {num_classes}: use at least 2 classes, and twice as many papers"
        )
    generator = np.random.default_rng(seed)
    numbers = {"author": num_papers // 2, "paper": num_papers, "venue": 4 * num_classes}

    def links(source: str, destination: str, degree: int, homophily: float) -> tuple[Tensor, Tensor]:
        """So many edges from each source, to a vertex of its own community so often, else to any."""
        sources = np.arange(numbers[source]).repeat(degree)
        community = sources % num_classes
        inside = community + num_classes * generator.integers(
            (numbers[destination] - community + num_classes - 1) // num_classes
        )
        anywhere = generator.integers(numbers[destination], size=len(sources))
        drawn = np.where(generator.random(len(sources)) < homophily, inside, anywhere)
        return torch.from_numpy(sources), torch.from_numpy(drawn)

    def features(of: str, columns: int, strength: float) -> Tensor:
        noise = generator.standard_normal((numbers[of], columns), np.float32)
        directions = generator.standard_normal((num_classes, columns), np.float32)
        return torch.from_numpy(noise + np.float32(strength) * directions[np.arange(numbers[of]) % num_classes])

    return assemble_typed_graph(
        {
            "author": VertexRows(numbers["author"], features("author", 8, 2 * signal)),
            "paper": VertexRows(num_papers, features("paper", 16, signal), torch.arange(num_papers) % num_classes),
            "venue": VertexRows(numbers["venue"]),
        },
        {
            ("author", "writes", "paper"): links("author", "paper", 4, 0.8),
            ("paper", "in", "venue"): links("paper", "venue", 1, 0.6),
            ("paper", "cites", "paper"): links("paper", "paper", 4, 0.7),
            ("paper", "mentions", "paper"): links("paper", "paper", 12, 0.0),
        },
        self_loops="remove",
        random_split_options=split or SplitOptions(kind="fractions"),
        split_seed=seed,
    )

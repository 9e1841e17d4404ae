"""A synthetic graph with communities that a model can learn, for examples and tests."""

from typing import Literal

import numpy as np
import torch
from torch import Tensor

from windrow.comm.errors import RecipeError
from windrow.gnn.build import assemble_graph
from windrow.gnn.graph import Graph
from windrow.gnn.vertex_data import SplitOptions

__all__ = ["community_graph"]


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
        task: "multi-label" gives each vertex its own class and the next; "binary" needs two communities.
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

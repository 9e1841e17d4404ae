"""From edges and raw vertex data, as files hold them, to a validated graph: the way in for every reader."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from windrow.gnn.build import SelfLoops, csc_from_edges
from windrow.gnn.features import float_features
from windrow.gnn.graph import Graph
from windrow.gnn.labels import TaskOption, prepare_labels
from windrow.gnn.splits import SplitOptions, VertexSplit, random_split

__all__ = ["assemble_graph"]


def assemble_graph(
    sources: Tensor | npt.NDArray[np.integer],
    destinations: Tensor | npt.NDArray[np.integer],
    num_vertices: int,
    *,
    features: Tensor | npt.NDArray[np.generic] | None = None,
    labels: Tensor | npt.NDArray[np.generic] | None = None,
    split: VertexSplit | None = None,
    symmetrise: bool = True,
    self_loops: SelfLoops = "keep",
    deduplicate: bool = True,
    task: TaskOption = "auto",
    random_split_options: SplitOptions | None = None,
    split_seed: int = 0,
    index_dtype: torch.dtype | None = None,
    describe_edge: Callable[[int], str] = "edge {}".format,
) -> Graph:
    """Build a graph and check it.

    Args:
        sources: integers [E].
        destinations: integers [E].
        num_vertices: N.
        features: numbers [N, F], or None.
        labels: see `windrow.gnn.labels.prepare_labels`, or None.
        split: the data set's own split; None draws one at random where there are labels.
        symmetrise: see `windrow.gnn.build.csc_from_edges`.
        self_loops: see `windrow.gnn.build.csc_from_edges`.
        deduplicate: see `windrow.gnn.build.csc_from_edges`.
        task: what the labels mean.
        random_split_options: how a random split is drawn; None for the defaults.
        split_seed: seed of a random split.
        index_dtype: see `windrow.gnn.build.csc_from_edges`.
        describe_edge: names edge i in an error.

    Returns:
        A graph that `Graph.validate` accepts; where it has labels, one that can be trained on.

    Raises:
        DataError: the data breaks a law of `windrow.gnn.validate`.
    """
    indptr, indices = csc_from_edges(
        sources,
        destinations,
        num_vertices,
        symmetrise=symmetrise,
        self_loops=self_loops,
        deduplicate=deduplicate,
        index_dtype=index_dtype,
        describe_edge=describe_edge,
    )
    prepared = None if labels is None else prepare_labels(labels, task)
    if split is None and prepared is not None:
        split = random_split(prepared[0], random_split_options or SplitOptions(), seed=split_seed)
    split = split or VertexSplit.empty()
    graph = Graph(
        indptr=indptr,
        indices=indices,
        features=None if features is None else float_features(features),
        labels=None if prepared is None else prepared[0],
        train_ids=split.train_ids,
        validation_ids=split.validation_ids,
        test_ids=split.test_ids,
        task="single-label" if prepared is None else prepared[1],
        num_classes=0 if prepared is None else prepared[2],
    )
    graph.validate(training=graph.labels is not None)
    return graph

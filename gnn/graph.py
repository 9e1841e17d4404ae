"""A whole graph in memory: topology, features, labels and splits.

The topology is stored by destination (compressed sparse columns, CSC), because a vertex asks for its
sources::

    edges  1 -> 0,  2 -> 0,  0 -> 2            indptr   0  2  2  3
                                               indices  1  2  |  |  0
    vertex 0 hears from 1 and 2, vertex 1 from nobody, vertex 2 from 0
"""

import hashlib
from dataclasses import dataclass, fields
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from windrow.gnn.graph_kernels import relabel_neighbours
from windrow.gnn.validate import validate_graph

__all__ = ["Graph", "Renumbering", "Task"]

Task = Literal["single-label", "binary", "multi-label"]
"""What is predicted for a vertex: one of many classes, one of two, or any subset of the classes."""


class Renumbering(Protocol):
    """A renumbering of the vertices, as `windrow.partition.book.PartitionBook` holds it."""

    @property
    def new_to_old(self) -> npt.NDArray[np.int64]:
        """Old id of each new id, int64 [N]."""

    @property
    def old_to_new(self) -> npt.NDArray[np.int64]:
        """New id of each old id, int64 [N]."""


@dataclass(frozen=True, kw_only=True)
class Graph:
    """A graph with what is known about its vertices.

    Two fields may be absent: a graph that is only partitioned or sampled has neither features nor labels.
    """

    indptr: Tensor
    """int64 [N + 1]; the in-neighbours of vertex v are ``indices[indptr[v]:indptr[v + 1]]``."""
    indices: Tensor
    """int32 or int64 [E]; sources of the edges, ascending inside each vertex's list as it was read."""
    features: Tensor | None
    """Floating point [N, F], or None."""
    labels: Tensor | None
    """int64 [N] for "single-label" and "binary" (-1: unknown), float32 [N, C] of 0 and 1 for "multi-label",
    or None."""
    train_ids: Tensor
    """int64; vertices whose labels are learnt from."""
    validation_ids: Tensor
    """int64; vertices that choose the best epoch."""
    test_ids: Tensor
    """int64; vertices that are only ever measured on."""
    task: Task
    """What the labels mean; of no consequence where there are none."""
    num_classes: int
    """C; 0 where there are no labels."""

    @property
    def num_vertices(self) -> int:
        """N."""
        return self.indptr.numel() - 1

    @property
    def num_edges(self) -> int:
        """E, the number of directed edges; an undirected edge counts twice."""
        return self.indices.numel()

    @property
    def in_degrees(self) -> Tensor:
        """int64 [N]; the number of in-neighbours of each vertex."""
        return self.indptr.diff()

    def validate(self, *, training: bool = True) -> None:
        """Check every law that the fields must obey; see `windrow.gnn.validate.validate_graph`.

        Args:
            training: also require what training needs: labels, and at least one training vertex.

        Raises:
            DataError: a law is broken; the message names the value, its place and the cure.
        """
        validate_graph(self, training=training)

    def relabel(self, book: Renumbering) -> "Graph":
        """Renumber the vertices.

        Each neighbour list keeps its order, and so do the lists of splits: entry i of either is the same
        vertex before and after. What is sampled by position therefore does not depend on the numbering.

        Args:
            book: the new order; only ``new_to_old`` and ``old_to_new`` are read.

        Returns:
            A new graph with row ``book.old_to_new[v]`` where this one has row v.

        Cost:
            One pass over the edges and one copy of features and labels.
        """
        old = np.ascontiguousarray(book.new_to_old, dtype=np.int64)
        new = np.ascontiguousarray(book.old_to_new, dtype=np.int64)
        rows, ids = torch.from_numpy(old), torch.from_numpy(new)
        indptr = torch.zeros_like(self.indptr)
        torch.cumsum(self.in_degrees[rows], 0, out=indptr[1:])
        indices = torch.empty_like(self.indices)
        relabel_neighbours(
            self.indptr.numpy(), self.indices.numpy(), old, new, indptr.numpy(), indices.numpy()
        )
        return Graph(
            indptr=indptr,
            indices=indices,
            features=None if self.features is None else self.features[rows],
            labels=None if self.labels is None else self.labels[rows],
            train_ids=ids[self.train_ids],
            validation_ids=ids[self.validation_ids],
            test_ids=ids[self.test_ids],
            task=self.task,
            num_classes=self.num_classes,
        )

    def fingerprint(self) -> str:
        """Digest of everything in the graph: equal digests mean the same data.

        Returns:
            SHA-256 in hexadecimal over name, dtype, shape and bytes of each array, the task and the classes.

        Cost:
            One pass over all bytes, about a second per gigabyte.
        """
        digest = hashlib.sha256()
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Tensor):
                array = np.ascontiguousarray(value.detach().cpu().numpy())
                digest.update(f"{field.name}:{value.dtype}:{tuple(value.shape)};".encode())
                digest.update(array.reshape(-1).view(np.uint8).data)
            else:
                digest.update(f"{field.name}={value};".encode())
        return digest.hexdigest()

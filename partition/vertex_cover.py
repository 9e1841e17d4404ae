"""The fewest rows that serve the edges from one part to another: some of their sources, and sums for the others.

    part p            part q
    a ────▶ x, y, z           a's row serves its three edges, and one sum over b, c and d the three into w:
    b, c, d ────▶ w           2 rows travel, where those of all sources would be 4

An edge is served by the row of its source, or by the sum that its destination gets of the rows of sources which are
not sent themselves. So the fewest rows are a least vertex cover of a bipartite graph, which has as many vertices as the
largest matching has edges (Koenig's theorem). For full-graph training: Zhuang et al., SuperGCN, ICS 2025.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["VertexCover", "least_vertex_cover"]

Ids = npt.NDArray[np.integer]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class VertexCover:
    """Which rows travel, and which edge each of them serves."""

    sources: Ids
    """Ids whose own rows are sent, rising."""
    destinations: Ids
    """Ids that are sent a sum, rising."""
    by_source: npt.NDArray[np.bool_]
    """[E] whether an edge is served by the row of its source; else it belongs to its destination's sum."""


def least_vertex_cover(sources: Ids, destinations: Ids) -> VertexCover:
    """Choose the fewest sources and destinations so that every edge has one of them.

    An edge that has both belongs to its source. Of all least choices it is the one with the most sources, which is
    unique: neither the order of the edges nor repeats of them change it, so sender and receiver may each compute it.

    Args:
        sources: int [E], the source of each edge; any ids.
        destinations: int [E], ids apart from those of the sources.

    Cost: O(E sqrt(N)) at worst (Hopcroft, Karp: An n^5/2 Algorithm for Maximum Matchings in Bipartite Graphs, SIAM J.
    Comput. 1973); 0.1 to 1.6 s for a million edges.
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import breadth_first_order, maximum_bipartite_matching

    if len(sources) == 0:
        return VertexCover(sources=sources, destinations=destinations, by_source=np.empty(0, np.bool_))
    source_ids, rows = np.unique(sources, return_inverse=True)
    destination_ids, columns = np.unique(destinations, return_inverse=True)
    num_sources = len(source_ids)
    edges = csr_array((np.ones(len(rows), np.bool_), (rows, columns)), shape=(num_sources, len(destination_ids)))
    edges.sum_duplicates()
    mates = maximum_bipartite_matching(edges, perm_type="row")

    # Koenig: what alternating paths from sources without a mate reach. They leave a source by any edge, and its
    # destination for that one's mate. They start in a vertex of their own, where destinations without a mate lead back
    # to: a path that came to one would make the matching larger, so none does.
    mates = np.where(mates < 0, num_sources, mates)
    single = np.ones(num_sources + 1, np.bool_)
    single[mates] = False
    targets = np.concatenate([mates[edges.indices], np.flatnonzero(single[:num_sources])])
    starts = np.append(edges.indptr, len(targets))
    steps = csr_array((np.ones(len(targets), np.bool_), targets, starts), shape=(num_sources + 1, num_sources + 1))
    sent = np.ones(num_sources + 1, np.bool_)
    sent[breadth_first_order(steps, num_sources, return_predecessors=False)] = False
    by_source = sent[rows]
    return VertexCover(
        sources=source_ids[sent[:num_sources]],
        destinations=destination_ids[np.unique(columns[~by_source])],
        by_source=by_source,
    )

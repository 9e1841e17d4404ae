"""Vertex inclusion probabilities (VIP): how likely a minibatch of a rank needs a vertex's row, before any is sampled.

`Demand` is what a ranking of vertices may look at. `Samplers` are the neighbour lists of a graph read the other way
round, and how far they overlap: a vertex samples from its own list, but its chance to be sampled depends on in whose
lists it stands. In an undirected graph these are the vertices of its own list, and nothing needs to be built.

The idea is that of SALIENT++ (Kaler et al., Communication-Efficient Graph Neural Networks with Probabilistic
Neighborhood Expansion Analysis and Caching, MLSys 2023), whose formula follows samplers that expand the vertices of the
last hop only. Our sampler draws anew for all vertices found so far, so for a list of length d(v), with
t_j(v) = min(1, f_j / d(v)) and q_i(v) the probability that v is found by hop i (q_0 = 1 / steps for a seed), v finds
an entry u of its list in some hop up to h with probability

    w_h(v, u) = sum over i < h of (q_i - q_i-1) * (1 - product over i < j <= h of (1 - t_j(v)))

    q_h(u) = 1 - (1 - q_0(u)) * product over v that list u of (1 - w_h(v, u))

The product takes the ways to u for independent. Two dependences are taken out of the q_i(v) in w_h(v, u):

* what u itself brought about: u cannot be found through v where v was found through u (u's factor is divided out);
* what finds both: where x lists v and u and draws both, v finds nothing new. Of the factors of those that list v the
  share ``c(v) * t_i(x)`` is divided out, c(v) the clustering coefficient of v, estimated by sampling (`Samplers`),
  times 0.6.

Where edges have types, d(v) is the number of those of one type, of which the sampler draws f_j each, and w differs from
type to type; what u itself brought about counts as if it came by a list of v's average length.

On graphs without triangles the first alone leaves an error of expected traffic below 1 %. The second turns 8 % into 3 %
on a social network and a network of co-authors. Entries that repeat in a list are as many chances to be drawn.
"""

import operator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from windrow.caching.ranking_kernels import estimate_shared, fingerprints, mark_single_edges, pass_hop
from windrow.comm.random import stream_key
from windrow.comm.rows_kernels import transpose
from windrow.comm.threads import in_parallel

__all__ = ["Demand", "Samplers", "TypedLists", "find_samplers", "inclusion_probabilities"]


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Demand:
    """The sampled neighbourhoods of one rank's training vertices, as far as they are known before sampling."""

    indptr: npt.NDArray[np.int64]
    """int64 [N + 1], where each vertex's list of in-neighbours starts: a vertex samples from its own list."""
    indices: npt.NDArray[np.integer]
    """int32 or int64 [E], the lists one after another."""
    own: tuple[int, int]
    """First id of the vertices whose rows this rank holds anyway, and the one after its last."""
    seeds: npt.NDArray[np.int64]
    """int64 [n], the training vertices of this rank, each in one minibatch of every epoch."""
    steps: int
    """Minibatches in an epoch, at least 1: a seed is in each of them with probability 1 / steps."""
    fanouts: tuple[int, ...]
    """Neighbours sampled per vertex at each hop, from the seeds outwards; -1 for all."""
    chances: npt.NDArray[np.float64] | None = None
    """float64 [n], the probability of each seed to be in a minibatch; None: 1 / steps."""
    edge_type: npt.NDArray[np.int16] | None = None
    """int16 [E], beside `indices`, never falling inside a list: fanouts are those of each type. None: of the list."""

    @property
    def num_vertices(self) -> int:
        """N."""
        return len(self.indptr) - 1


PAIRS_PER_VERTEX = 8
"""Draws that estimate how far lists overlap. Single estimates are coarse, but sums over many neighbours count."""


class TypedLists(NamedTuple):
    """The lists of a graph whose edges have types, one for each type of edge that enters a vertex."""

    lengths: npt.NDArray[np.int64]
    """int64 [L]."""
    first: npt.NDArray[np.int64]
    """int64 [N + 1], where the lists of each vertex start."""
    of_entries: npt.NDArray[np.integer]
    """[E], the list that each entry of `Samplers.indices` stands for."""

    def mean(self, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Of a value for each list [L] the mean over the edges of each vertex, [N]; 0 where there are none."""
        sums, edges = (np.concatenate([[0], (each * self.lengths).cumsum()])[self.first] for each in (values, 1))
        return np.diff(sums) / np.maximum(1, np.diff(edges))


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Samplers:
    """In whose lists each vertex stands, of one graph."""

    indptr: npt.NDArray[np.int64]
    """int64 [N + 1], where each vertex's list of those who list it starts."""
    indices: npt.NDArray[np.integer]
    """int32 or int64 [E], the lists one after another."""
    single: npt.NDArray[np.bool_] | None
    """bool [E], beside `indices`: whether that vertex is not itself listed by the one that it lists. None where no edge
    is so: an undirected graph."""
    shared: npt.NDArray[np.float32]
    """float32 [N], of the pairs of a vertex that lists this one and one that this one lists, the share where the first
    lists the second too, about: the local clustering coefficient of an undirected graph."""
    lists: TypedLists | None = None
    """Where edges have types, whose the entries of `indices` are."""


def find_samplers(
    indptr: npt.NDArray[np.int64], indices: npt.NDArray[np.integer], edge_type: npt.NDArray[np.int16] | None = None
) -> Samplers:
    """Read the lists of a graph, as in `Demand`, the other way round; the same on any number of threads.

    Cost:
        O(E), on as many threads as PyTorch has. Memory: 4 bytes per vertex; for a graph that is not undirected also a
        copy of the lists, one byte per edge, and 8 bytes per vertex and thread while it runs; where edges have types 9
        bytes more per edge, and 16 per list.
    """
    out_indptr, out_indices, single, lists = indptr, indices, None, None
    is_undirected = edge_type is None and operator.eq(*fingerprints(indptr, indices))
    if not is_undirected:
        out_indptr, out_indices = np.zeros_like(indptr), np.empty_like(indices)
        if edge_type is None:
            transpose(indptr, indices, out_indptr, out_indices, None)
        else:
            starts, first = _typed_lists(indptr, edge_type)
            of_entries: npt.NDArray[np.integer] = np.empty(len(indices), np.int64)
            transpose(np.append(starts, len(indices)), indices, out_indptr, of_entries, None)
            lists = TypedLists(np.diff(starts, append=len(indices)), first, of_entries)
            vertices = np.arange(len(indptr) - 1, dtype=indices.dtype)
            np.take(vertices.repeat(np.diff(first)), of_entries, out=out_indices)
        single = np.empty(len(indices), np.bool_)
        mark = partial(
            mark_single_edges, indptr=indptr, indices=indices, out_indptr=out_indptr, out_indices=out_indices,
            single=single,
        )  # fmt: skip
        in_parallel(mark, out_indptr, chunks_per_thread=1)
    shared = np.empty(len(indptr) - 1, np.float32)
    estimate = partial(
        estimate_shared, num_draws=PAIRS_PER_VERTEX, key=np.uint64(stream_key(0)), indptr=indptr, indices=indices,
        out_indptr=out_indptr, out_indices=out_indices, shared=shared,
    )  # fmt: skip
    in_parallel(estimate, indptr)
    return Samplers(indptr=out_indptr, indices=out_indices, single=single, shared=shared, lists=lists)


def _typed_lists(
    indptr: npt.NDArray[np.int64], edge_type: npt.NDArray[np.int16]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Where each list starts among the edges, and each vertex's lists among the lists: [L] and [N + 1]."""
    is_start = np.ones(len(edge_type), np.bool_)
    np.not_equal(edge_type[1:], edge_type[:-1], out=is_start[1:])
    is_start[indptr[:-1][np.diff(indptr) > 0]] = True
    starts = np.flatnonzero(is_start)
    return starts, np.searchsorted(starts, indptr)


COMMON_SHARE = 0.6
"""How much of the common part is divided out. All of it is too much, since what is left is not independent either:
without it expected traffic was 1 to 10 % too high on clustered graphs, with all of it 1 to 10 % too low."""

CERTAIN = -200.0
"""Stands for the logarithm of 0: so far below 0 that what is divided out never makes a certain vertex uncertain, and
finite, so that differences are numbers."""


def inclusion_probabilities(demand: Demand, *, samplers: Samplers | None = None) -> npt.NDArray[np.float64]:
    """Compute how likely one minibatch of a rank needs each vertex.

    Args:
        demand: what the rank will sample.
        samplers: of the same graph, where they are known from another rank's demand; else they are found.

    Returns:
        float64 [H + 1, N]: row h is the probability that one minibatch has found the vertex after h hops, and the last
        row that it is among the input rows. Never falls from hop to hop; 0 where a vertex cannot be reached. The same
        on any number of threads.

    Cost:
        One pass over the edges per hop, on as many threads as PyTorch has. Memory: 8 * (4 H + 7) bytes per vertex for
        H hops, 152 for three, and what `find_samplers` takes; where edges have types 8 * (H + 4) bytes more per list.
    """
    num_vertices, num_hops = demand.num_vertices, len(demand.fanouts)
    samplers = samplers or find_samplers(demand.indptr, demand.indices, demand.edge_type)
    lists = samplers.lists
    fanouts = np.array([np.inf if fanout < 0 else fanout for fanout in demand.fanouts])
    degrees = np.maximum(1, np.diff(demand.indptr))
    lengths = degrees
    if lists is not None:
        lengths = lists.lengths
        degrees //= np.maximum(1, np.diff(lists.first))  # Of a vertex's average list.
    hops = np.zeros((num_hops + 1, num_vertices))
    hops[0, demand.seeds] = 1.0 / demand.steps if demand.chances is None else demand.chances
    seed = hops[0]
    states = np.zeros((num_vertices, num_hops + 1))
    states[:, 0] = seed
    states[:, num_hops] = COMMON_SHARE * samplers.shared.astype(np.float64)
    drawn = np.zeros((len(lengths), num_hops))
    sent = np.zeros((num_vertices, num_hops))
    missed, redundant = np.empty(num_vertices), np.empty(num_vertices)
    undrawn, share = (missed, redundant) if lists is None else (np.empty(len(lengths)), np.empty(len(lengths)))

    for hop in range(1, num_hops + 1):
        # `missed` and `redundant` are free outside of pass_hop: this is the peak of memory.
        undrawn[:] = 1.0
        for i in reversed(range(hop)):
            np.divide(-fanouts[i], lengths, out=share)
            share += 1.0
            undrawn *= np.maximum(0.0, share)
            np.subtract(1.0, undrawn, out=drawn[:, i])
        in_parallel(
            partial(
                pass_hop, hop=hop, certain=CERTAIN, fanouts=fanouts, degrees=degrees, indptr=samplers.indptr,
                indices=samplers.indices, lists=None if lists is None else lists.of_entries, single=samplers.single,
                states=states, drawn=drawn, sent=sent, missed=missed, redundant=redundant,
            ),
            samplers.indptr,
        )  # fmt: skip
        if hop < num_hops:
            redundant *= states[:, num_hops]
            np.subtract(missed, redundant, out=states[:, hop])
        np.expm1(missed, out=missed)
        missed *= seed - 1.0
        missed += seed
        # The sum can end a rounding above 1.
        np.clip(missed, hops[hop - 1], 1.0, out=hops[hop])
        found = np.multiply(seed, _of_vertices(drawn[:, 0], lists), out=missed)
        for i in range(1, hop):
            np.subtract(hops[i], hops[i - 1], out=redundant)
            redundant *= _of_vertices(drawn[:, i], lists)
            found += redundant
        with np.errstate(divide="ignore"):
            sent[:, hop - 1] = np.maximum(CERTAIN, np.log1p(-np.minimum(1.0, found)))
    return hops


def _of_vertices(values: npt.NDArray[np.float64], lists: TypedLists | None) -> npt.NDArray[np.float64]:
    """Of a value for each list that for each vertex."""
    return values if lists is None else lists.mean(values)

"""Vertex inclusion probabilities: how likely a minibatch of a rank needs a vertex's row, before any is sampled.

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
  share ``c(v) * t_i(x)`` is divided out, c(v) the clustering coefficient of v, estimated by sampling
  (`windrow.caching.samplers`), times 0.6.

On graphs without triangles the first alone leaves an error of expected traffic below 1 %. The second turns 8 % into 3 %
on a social network and a network of co-authors. Entries that repeat in a list are as many chances to be drawn.
"""

from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from windrow.caching.demand import Demand
from windrow.caching.samplers import Samplers, find_samplers, in_parallel
from windrow.caching.vip_kernels import begin_hop, finish_hop, pass_hop

__all__ = ["InclusionProbabilities", "inclusion_probabilities"]

COMMON_SHARE = 0.6
"""How much of the common part is divided out. All of it is too much, since what is left is not independent either:
without it expected traffic was 1 to 10 % too high on clustered graphs, with all of it 1 to 10 % too low."""

CERTAIN = -200.0
"""Stands for the logarithm of 0: so far below 0 that what is divided out never makes a certain vertex uncertain, and
finite, so that differences are numbers."""


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class InclusionProbabilities:
    """How likely a minibatch of a rank needs each vertex."""

    hops: tuple[npt.NDArray[np.float64], ...]
    """float64 [N] for no hop (the seeds themselves), one hop, and so on: probability that one minibatch has found the
    vertex by then. Never falls from hop to hop."""

    @property
    def total(self) -> npt.NDArray[np.float64]:
        """float64 [N], probability that the vertex is among the input rows of one minibatch: that of the last hop."""
        return self.hops[-1]


def inclusion_probabilities(demand: Demand, *, samplers: Samplers | None = None) -> InclusionProbabilities:
    """Compute how likely one minibatch of a rank needs each vertex.

    Args:
        demand: what the rank will sample.
        samplers: of the same graph, where they are known from another rank's demand; else they are found.

    Returns:
        Probabilities from 0 to 1, finite, the same on any number of threads. Vertices that cannot be reached have 0.

    Cost:
        One pass over the edges per hop, on as many threads as PyTorch has. Memory: 8 * (4 H + 5) bytes per vertex for
        H hops, 136 for three, and what `windrow.caching.samplers.find_samplers` takes.
    """
    num_vertices, num_hops = demand.num_vertices, len(demand.fanouts)
    if samplers is None:
        samplers = find_samplers(demand.indptr, demand.indices)
    fanouts = np.array(demand.fanouts, np.int64)
    hops = np.zeros((num_hops + 1, num_vertices))
    hops[0, demand.seeds] = 1.0 / demand.steps
    degrees = np.diff(demand.indptr)
    states = np.zeros((num_vertices, 2 * num_hops + 1))
    states[:, 0] = hops[0]
    states[:, num_hops] = COMMON_SHARE * samplers.shared.astype(np.float64)
    sent = np.zeros((num_vertices, num_hops))
    missed, redundant = np.empty(num_vertices), np.empty(num_vertices)

    for hop in range(1, num_hops + 1):
        in_parallel(
            partial(begin_hop, fanouts=fanouts, hop=hop, degrees=degrees, states=states), demand.indptr
        )
        in_parallel(
            partial(
                pass_hop, fanouts=fanouts, hop=hop, certain=CERTAIN, degrees=degrees, indptr=samplers.indptr,
                indices=samplers.indices, single=samplers.single, states=states, sent=sent, missed=missed,
                redundant=redundant,
            ),
            samplers.indptr,
        )  # fmt: skip
        in_parallel(
            partial(
                finish_hop, fanouts=fanouts, hop=hop, certain=CERTAIN, missed=missed, redundant=redundant, hops=hops,
                states=states, sent=sent,
            ),
            demand.indptr,
        )  # fmt: skip
    return InclusionProbabilities(hops=tuple(hops))

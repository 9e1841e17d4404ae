"""What remote vertices are ranked by: every policy gives a score to each vertex, and the highest are kept.

With A the matrix that adds up over the vertices that list a vertex, d the lengths of lists, T the rank's training
vertices and H hops (Kaler et al., MLSys 2023, compare the same):

    vip                inclusion probabilities, `windrow.caching.vip`
    degree             in how many lists a vertex stands
    reachable-degree   the same, 0 where no seed reaches the vertex in H hops
    halo               1 for vertices in the list of a seed
    paths              x_0 = 1 on T, x_h = x_h-1 + A x_h-1; x_H
    reverse-pagerank   x_0 = 1 / |T| on T, x_h = x_h-1 + A (x_h-1 / d); x_H (Min et al., Graph Neural Network Training
                       and Data Tiering, KDD 2022)
    simulation         how often two simulated epochs ask for the vertex (Yang et al., GNNLab, EuroSys 2022)

Given the counts of the very epochs that are trained, "simulation" is the oracle: no fixed choice asks for fewer rows.
"""

from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt

from windrow.caching.ranking_kernels import add_from_samplers
from windrow.caching.selection import PolicyName
from windrow.caching.vip import Demand, Samplers, inclusion_probabilities
from windrow.comm.errors import RecipeError
from windrow.comm.threads import in_parallel

__all__ = ["SIMULATED_EPOCHS", "score_vertices"]

Scores = npt.NDArray[np.float64]

SIMULATED_EPOCHS = 2
"""Of policy "simulation"; as in SALIENT++."""


def score_vertices(
    policy: PolicyName, demand: Demand, *, simulate: Callable[[int], npt.NDArray[np.int64]] | None, samplers: Samplers
) -> Scores:
    """Score the vertices of a graph for one rank.

    Args:
        policy: what to go by.
        demand: what the rank will sample.
        simulate: given a number of epochs, int64 [N], how often they ask for each vertex, for policy "simulation".
        samplers: of the same graph.

    Returns:
        float64 [N], from 0, higher is kept first; of remote vertices with 0 nothing is expected.

    Raises:
        RecipeError: the policy is "simulation" and there is no `simulate`.

    Cost: at most one pass over the edges for each hop.
    """
    if policy == "simulation":
        if simulate is None:
            raise RecipeError('policy "simulation" needs minibatches to count: give it a sampler, or choose "vip"')
        return simulate(SIMULATED_EPOCHS).astype(np.float64)
    if policy == "vip":
        total: Scores = inclusion_probabilities(demand, samplers=samplers)[-1]
        return total
    scores = np.zeros(demand.num_vertices)
    scores[demand.seeds] = 1.0 / max(1, len(demand.seeds)) if policy == "reverse-pagerank" else 1.0
    if policy == "halo":
        return np.minimum(1.0, _summed(samplers, scores))
    listed = np.diff(samplers.indptr).astype(np.float64)
    if policy == "degree":
        return listed
    degrees = np.maximum(1, np.diff(demand.indptr))
    for _ in demand.fanouts:
        scores += _summed(samplers, scores / degrees if policy == "reverse-pagerank" else scores)
        if policy == "reachable-degree":
            # Only whether it is above 0 counts; without the cut the numbers of paths could overflow.
            scores = np.minimum(1.0, scores)
    return np.where(scores > 0, listed, 0.0) if policy == "reachable-degree" else scores


def _summed(samplers: Samplers, values: Scores) -> Scores:
    """A times the values."""
    sums = np.empty_like(values)
    indptr, indices = samplers.indptr, samplers.indices
    in_parallel(partial(add_from_samplers, indptr=indptr, indices=indices, values=values, sums=sums), indptr)
    return sums

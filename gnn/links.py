"""Links of a graph: those to learn and to measure on, minibatches of them, negatives, loss and ranks."""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, Literal, TypedDict, get_args

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from windrow.caching.vip import Demand
from windrow.comm.errors import DataError, RecipeError
from windrow.comm.fetch import fetch_rows
from windrow.comm.random import Stream, hash_ids, permuted, stream_key
from windrow.comm.rows import near_equal_split, numbers_in_ranges
from windrow.comm.wire import Wire
from windrow.comm.world import World
from windrow.gnn.graph import Graph
from windrow.gnn.partitioned import PartitionedGraph
from windrow.gnn.pipeline import SeedTask
from windrow.gnn.seed_order import count_steps
from windrow.gnn.types import EDGE_ARRAYS, EdgeType
from windrow.training.task import Loss, device_of, summed_loss

__all__ = ["LinkKeywords", "LinkObjective", "LinkSeeds", "Links", "Negatives", "split_links"]

Negatives = Literal["uniform", "degree", "shared", "in-batch"]
"""Vertices that u is taken not to be joined to. Where vertices have types, those of the type of v.

uniform, degree: drawn for each edge, from all or from the ends of training edges, so by degree.

shared: drawn from all, the same for all edges of a step, so that many cost little; without those that u is joined to,
but for `LinkKeywords.keep_joined`.
log(K / N) is taken from their scores, K of N vertices: their softmax then estimates that of all, and is it where K
reaches N (sampled softmax; Wu et al., On the Effectiveness of Sampled Softmax Loss for Item Recommendation, TOIS 2024).

in-batch: the v of the rank's other edges of the step, likewise. These come as often as they are joined, so log q is
taken from scores, q the share of the rank's training edges that end in a vertex: otherwise what is joined often would
be punished for it (logQ correction; Yi et al., Sampling-Bias-Corrected Neural Modeling for Large Corpus Item
Recommendations, RecSys 2019)."""

OWN_NEGATIVES, SHARED_NEGATIVES = 4, 1024
"""How many there are of each kind where nobody says."""

PAIRS_PER_CHUNK = 1024
"""Edges that are scored at a time in evaluation."""


class LinkKeywords(TypedDict, total=False):
    """Keywords of tasks whose samples are links."""

    negatives: Negatives
    """What they are: "uniform" where nothing is said. Those of "in-batch" depend on the number of ranks."""
    num_negatives: int | None
    """K, for each training edge; those that are "shared" are the same for all of a step. None: 4, or 1,024 shared.
    "in-batch" has as many as the rank has other edges in the minibatch."""
    hardest_negatives: int | None
    """H, how many of these count, those with the largest scores in each step; None: all."""
    keep_joined: bool
    """Whether shared and in-batch negatives that u is joined to count, all but v itself, as in a softmax over all
    vertices; False leaves them out. Others are drawn whatever u is joined to."""
    loss: Loss | None
    """``loss(scores, labels)`` of the edges of a rank, their mean or one value for each; scores are [n, 1 + K], or with
    hardest_negatives [n, 1 + H], labels int64 [n] say which of them is that of the edge. Those of negatives that edges
    share are less log q, and -inf for pairs that are left out: a softmax is meant. None: cross entropy."""
    k: int
    """Of hits@k: 10 where nothing is said."""
    evaluation_negatives: int
    """Uniform negatives that each measured edge is ranked among, the same at every evaluation: 100 where nothing is
    said."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Links:
    """Edges to learn and to measure on: int64 [2, n] each, source and destination in the user's ids."""

    train: Tensor
    """Learnt; messages go along them."""
    validation: Tensor
    """Choose the best epoch."""
    test: Tensor
    """Only ever measured on."""
    times: Tensor | None = None
    """[n] when each training edge was made, in any unit: then negatives of an edge are vertices that have been joined
    to something by then. None: any vertices are."""
    weights: Tensor | None = None
    """[n] that the losses of training edges are multiplied by: 1 on average, so that rates mean what they do
    without. None: each counts as much."""


def split_links(
    graph: Graph,
    *,
    validation_fraction: float = 0.05,
    test_fraction: float = 0.1,
    directed: bool = False,
    seed: int = 0,
    edge_type: EdgeType | None = None,
) -> tuple[Graph, Links]:
    """Take edges to measure on out of a graph.

    Args:
        graph: any; an edge that is there several times is one link. Self-loops are no links, and stay.
        validation_fraction: share of the links.
        test_fraction: likewise; RecipeError where nothing is left to train on.
        directed: whether u -> v and v -> u are two links; otherwise they are one, of which neither direction stays.
        seed: of the draw, which depends on the vertices' ids alone.
        edge_type: where edges have types, which are links. Edges of all types leave between two ends of one that does.

    Returns:
        The graph without validation and test links, and all links: from sources to destinations of the type.

    Raises:
        RecipeError: nothing is left to train on, or a type is missing, or not there.
    """
    if validation_fraction < 0 or test_fraction < 0 or validation_fraction + test_fraction >= 1:
        raise RecipeError(
            f"validation_fraction = {validation_fraction} and test_fraction = {test_fraction}: must not be negative, "
            "and leave a share to train on"
        )
    sources = graph.indices.numpy().astype(np.int64)
    targets = np.repeat(np.arange(graph.num_vertices), np.diff(graph.indptr.numpy()))
    low, high = (sources, targets) if directed else (np.minimum(sources, targets), np.maximum(sources, targets))
    keys = low * graph.num_vertices + high
    is_link, turned = sources != targets, False
    types = graph.types
    if types is not None or edge_type is not None:
        known = () if types is None else types.edges
        if edge_type not in known:
            names = ", ".join(map(str, known)) or "none"
            raise RecipeError(f"edge_type = {edge_type}: choose the type of links among those of the graph: {names}")
        number = known.index(edge_type)
        is_link &= graph.edge_type_array == number
        if types is not None and not directed:
            turned = types.ends[number][0] > types.ends[number][1]
    draws = hash_ids(stream_key(seed, Stream.SPLIT), keys) / np.float64(2**64)
    in_test = draws < test_fraction
    in_train = draws >= test_fraction + validation_fraction

    def links(chosen: npt.NDArray[np.bool_]) -> Tensor:
        found = np.unique(keys[chosen & is_link])
        ends = torch.from_numpy(np.stack([found // graph.num_vertices, found % graph.num_vertices]))
        return ends.flip(0) if turned else ends

    remains = in_train | ~np.isin(keys, keys[is_link]) if edge_type else in_train | ~is_link
    stays = torch.from_numpy(remains)
    counts = np.bincount(targets[remains], minlength=graph.num_vertices)
    remaining = replace(
        graph,
        indptr=torch.from_numpy(np.concatenate([[0], np.cumsum(counts)])),
        indices=graph.indices[stays],
        **{name: rows[stays] for name in EDGE_ARRAYS if (rows := getattr(graph, name)) is not None},
    )
    return remaining, Links(train=links(in_train), validation=links(~in_test & ~in_train), test=links(in_test))


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class SharedNegatives:
    """Negatives that all n edges of a rank's minibatch have."""

    places: Tensor
    """int64 [m], where they are among the seeds."""
    log_q: Tensor
    """float32 [m], how often each is drawn."""
    own_log_q: Tensor
    """float32 [n, 1], the same of each edge's v."""
    left_out: Tensor
    """int64 [2, j], edges, and which of the negatives are none of theirs: their u itself, and what it is joined to, or
    of that their v alone."""
    times: tuple[Tensor, Tensor] | None
    """int64 [n] and [m], that of each edge, and of each negative's first edge; None where edges have no times."""


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class LinkSeeds(SeedTask):
    """Ends of training edges and their negatives, each once, and the edges between them."""

    sources: Tensor
    """int64 [n], where each u is among the seeds."""
    candidates: Tensor
    """int64 [n, 1 + K], where v and the edge's own negatives are."""
    shared: SharedNegatives | None = None
    """Those that all edges have besides, if they share any."""
    weights: Tensor | None = None
    """float32 [n], of the losses of these edges."""


class _Pool:
    """What negatives are drawn from.

    Args:
        ids: int64 [m], maybe some of them several times.
        since: [m] from which time on each is there; None: from the beginning.
    """

    def __init__(self, ids: Tensor, since: npt.NDArray[np.int64] | None) -> None:
        self.ids, self._since = ids, None
        if since is not None:
            order = np.argsort(since, kind="stable")
            self.ids, self._since = ids[torch.from_numpy(order)], since[order]

    def _present(self, times: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """How many there are at each of some times, the first ones."""
        if self._since is None:
            return np.full(len(times), len(self.ids))
        return np.searchsorted(self._since, times, side="right")

    def draw(self, numbers: npt.NDArray[np.int64], times: npt.NDArray[np.int64], count: int, key: int) -> Tensor:
        """So many of those that are there at [n] times, by a hash of the numbers [n]: [n, count]."""
        draws = hash_ids(key, numbers[:, None] * count + np.arange(count))
        places = draws % self._present(times).astype(np.uint64)[:, None]
        return self.ids[torch.from_numpy(places.astype(np.int64))]

    def expected(self, times: npt.NDArray[np.int64], count: int, num_vertices: int) -> npt.NDArray[np.float64]:
        """How often each vertex is drawn on average, so many at each of some times: [num_vertices]."""
        present = self._present(times)
        # Each of the first `present` ones count / present times.
        ends = np.asarray(np.bincount(present, count / present, minlength=len(self.ids) + 1), np.float64)
        of_places = ends[::-1].cumsum()[::-1][1:]
        return np.asarray(np.bincount(self.ids.numpy(), of_places, minlength=num_vertices), np.float64)


class LinkObjective:
    """What is learnt of links, however their vectors are computed: which in each step, against what, and how well.

    Args:
        graph: this rank's view, of the graph without the links that are measured on.
        links: what to learn; must agree.
        negatives: see `LinkKeywords`, as for all that follow.
        num_negatives: K.
        hardest_negatives: H.
        keep_joined: whether what u is joined to counts.
        loss: of scores and labels.
        k: of hits@k.
        evaluation_negatives: that each measured edge is ranked among.

    Raises:
        RecipeError: an option is out of range.
        DataError: there is nothing to learn, a vertex of a link is not there, or links end in several types.
    """

    def __init__(
        self,
        graph: PartitionedGraph,
        links: Links,
        *,
        negatives: Negatives = "uniform",
        num_negatives: int | None = None,
        hardest_negatives: int | None = None,
        keep_joined: bool = False,
        loss: Loss | None = None,
        k: int = 10,
        evaluation_negatives: int = 100,
    ) -> None:
        num_negatives = _number_of_negatives(negatives, num_negatives, hardest_negatives, keep_joined=keep_joined)
        for name, value in (("k", k), ("evaluation_negatives", evaluation_negatives)):
            if value < 1:
                raise RecipeError(f"{name} = {value}: must be at least 1")
        new = torch.from_numpy(graph.book.old_to_new)
        self.graph = graph
        self._links: dict[str, Tensor] = {}
        digest = hashlib.sha256(graph.fingerprint.encode())
        for split in ("train", "validation", "test"):
            pairs: Tensor = getattr(links, split)
            _check_pairs(split, pairs, graph.num_vertices)
            digest.update(pairs.contiguous().numpy().tobytes())
            self._links[split] = new[pairs]
        if not links.train.numel():
            raise DataError("there are no links to train on: give the graph edges")
        for name in ("times", "weights"):
            of_edges: Tensor | None = getattr(links, name)
            if of_edges is not None:
                if of_edges.shape != links.train.shape[1:] or not bool(of_edges.isfinite().all()):
                    raise DataError(
                        f"{name} are {list(of_edges.shape)}, and there are {links.train.shape[1]} training links: give "
                        "one finite number for each"
                    )
                digest.update(name.encode() + of_edges.double().contiguous().numpy().tobytes())
        self.fingerprint = digest.hexdigest()
        self.num_links = links.train.shape[1]
        """Training edges, over all ranks."""
        self.k = k
        self._num_negatives, self._hardest = num_negatives, hardest_negatives
        self.settings: dict[str, Any] = {
            "negatives": negatives,
            "num_negatives": num_negatives,
            "hardest_negatives": hardest_negatives or 0,
            "keep_joined": keep_joined,
            "k": k,
            "evaluation_negatives": evaluation_negatives,
        }
        """For recipe.toml."""
        self._loss = loss or partial(F.cross_entropy, reduction="none")
        self._evaluation_negatives = evaluation_negatives
        self._others = new[slice(*_range_of_destinations(graph, links))]
        """Vertices that could stand in the place of a link's v."""
        start, stop = graph.own_range
        sources = self._links["train"][0]
        self._owned = ((sources >= start) & (sources < stop)).numpy()
        self._times, self._since = self._read_times(links.times)
        self._weights = None if links.weights is None else links.weights.float()
        self._pool = None if negatives == "in-batch" else self._pool_of(negatives)
        self._are_shared = negatives in ("shared", "in-batch")
        self._keeps_joined = keep_joined
        if self._are_shared:
            self._count_and_list()

    def _pool_of(self, negatives: Negatives) -> _Pool:
        """What they are drawn from; shared ones whatever their times."""
        if negatives == "shared":
            return _Pool(self._others, None)
        if negatives == "uniform":
            return _Pool(self._others, None if self._since is None else self._since[self._others.numpy()])
        # Of both ends of an edge, or where vertices have types that of v.
        ends = self._links["train"] if self.graph.types is None else self._links["train"][1:]
        return _Pool(ends.T.flatten(), None if self._since is None else np.repeat(self._times, len(ends)))

    def _count_and_list(self) -> None:
        """How often training edges end in each vertex, if in-batch; what each own one is joined to, if left out."""
        (start, stop), train = self.graph.own_range, self._links["train"]
        if self._pool is None:
            times = torch.bincount(train[1, torch.from_numpy(self._owned)], minlength=self.graph.num_vertices)
            self._log_shares = times.div(max(1, int(self._owned.sum()))).log()
        if self._keeps_joined:
            return
        ends = torch.cat([train, train.flip(0)], 1)
        ends = ends[:, (ends[0] >= start) & (ends[0] < stop)]
        ends = torch.cat([ends, torch.arange(start, stop).expand(2, -1)], 1)
        self._neighbours = ends[1, ends[0].argsort()].numpy()
        counts = np.bincount(ends[0].numpy() - start, minlength=stop - start)
        self._first_neighbours = np.concatenate([[0], counts.cumsum()])

    def _read_times(self, given: Tensor | None) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64] | None]:
        """Of each training edge which of the times in their order is its own; and that of each vertex' first edge."""
        if given is None:
            return np.zeros(self.num_links, np.int64), None
        distinct, inverse = given.unique(return_inverse=True)
        times, since = inverse.numpy(), np.full(self.graph.num_vertices, len(distinct))
        for ends in self._links["train"].numpy():
            np.minimum.at(since, ends, times)
        return times, since

    def start(self, *, batch_size: int, seed: int) -> int:
        """Be told the edges of a step, over all ranks, and the run's seed; the steps of an epoch."""
        self._seed = seed
        self._steps = count_steps(self.num_links, batch_size)
        self._bounds = near_equal_split(self.num_links, self._steps)
        return self._steps

    def global_batch_size(self, step: int) -> int:
        """Training edges of a step, over all ranks."""
        return self._bounds[step + 1] - self._bounds[step]

    def seeds(self, epoch: int, step: int) -> LinkSeeds:
        """Those of this rank's edges of a step, and all ranks' edges, in both directions, as `SeedTask.exclude`."""
        places = np.arange(self._bounds[step], self._bounds[step + 1])
        everyone = permuted(stream_key(self._seed, Stream.SHUFFLE, epoch), places, self.num_links)
        chosen = everyone[self._owned[everyone]]
        # Also those of other ranks leave the blocks, so that the answer does not depend on the number of ranks.
        predicted = self._links["train"][:, torch.from_numpy(everyone)]
        pairs = self._links["train"][:, torch.from_numpy(chosen)]
        vertices, negatives = pairs.T, self._negatives_of(epoch, step, chosen, pairs[1])
        if not self._are_shared:
            vertices, negatives = torch.cat([vertices, negatives], 1), negatives[:0].flatten()
        seeds, among = torch.cat([vertices.flatten(), negatives]).unique(return_inverse=True)
        of_edges, of_all = among.split([vertices.numel(), len(negatives)])
        of_edges = of_edges.view(vertices.shape)
        return LinkSeeds(
            seeds=seeds,
            epoch=epoch,
            step=step,
            exclude=torch.cat([predicted, predicted.flip(0)], 1),
            sources=of_edges[:, 0],
            candidates=of_edges[:, 1:],
            shared=self._shared(chosen, pairs, negatives, of_all) if self._are_shared else None,
            weights=None if self._weights is None else self._weights[torch.from_numpy(chosen)],
        )

    def _negatives_of(self, epoch: int, step: int, chosen: npt.NDArray[np.int64], targets: Tensor) -> Tensor:
        """[n, K] for each of these training edges, or [m] for all; what is drawn, the same on any number of ranks."""
        key, number = stream_key(self._seed, Stream.NEGATIVE, epoch), self._num_negatives
        if self._pool is None:
            return targets
        if not self._are_shared:
            return self._pool.draw(chosen, self._times[chosen], number, key)
        if number >= len(self._others):
            return self._others
        draws = np.arange(step * number, (step + 1) * number)
        return self._pool.draw(draws, draws, 1, key).flatten()

    def _shared(
        self, chosen: npt.NDArray[np.int64], pairs: Tensor, negatives: Tensor, places: Tensor
    ) -> SharedNegatives:
        """What there is to know of the negatives [m], at these places, of these training edges, [2, n]."""
        if self._pool is None:
            own_log_q, log_q = self._log_shares[pairs[1]], self._log_shares[negatives]
        else:
            # An edge's own v is certain to be there.
            own_log_q = torch.zeros(len(chosen))
            log_q = torch.full((len(negatives),), math.log(len(negatives) / len(self._others)))
        times = None
        if self._since is not None:
            times = torch.from_numpy(self._times[chosen]), torch.from_numpy(self._since[negatives.numpy()])
        return SharedNegatives(
            places=places,
            log_q=log_q,
            own_log_q=own_log_q.unsqueeze(1),
            left_out=self._left_out(pairs.numpy(), negatives.numpy()),
            times=times,
        )

    def _left_out(self, pairs: npt.NDArray[np.int64], negatives: npt.NDArray[np.int64]) -> Tensor:
        """See `SharedNegatives.left_out`."""
        if self._keeps_joined:
            end, column = _found_in(pairs.ravel(), negatives)
            return torch.from_numpy(np.stack([end % pairs.shape[1], column]))
        # The list of a u is looked at once, however many edges it has here.
        distinct, which = np.unique(pairs[0], return_inverse=True)
        lists = distinct - self.graph.own_range[0]
        of_source, places = numbers_in_ranges(self._first_neighbours[lists], self._first_neighbours[lists + 1])
        neighbour, column = _found_in(self._neighbours[places], negatives)
        bounds = np.concatenate([[0], np.bincount(which, minlength=len(distinct)).cumsum()])
        hit, row = numbers_in_ranges(bounds[of_source[neighbour]], bounds[of_source[neighbour] + 1])
        return torch.from_numpy(np.stack([which.argsort()[row], column[hit]]))

    def demand(self, fanouts: Sequence[int]) -> Demand:
        """How likely each vertex is among the seeds of a minibatch of this rank: as an end, or as a negative."""
        graph, links = self.graph, self._links["train"].numpy()
        own = links[:, self._owned]
        expected = np.bincount(own.reshape(-1), minlength=graph.num_vertices).astype(np.float64)
        if self._pool is not None:
            drawn_at = np.arange(self._steps) if self._are_shared else self._times[self._owned]
            expected += self._pool.expected(drawn_at, self._num_negatives, graph.num_vertices)
        return Demand(
            indptr=graph.indptr.numpy(),
            indices=graph.indices.numpy(),
            edge_type=graph.edge_type_array,
            own=graph.own_range,
            seeds=np.arange(graph.num_vertices),
            chances=-np.expm1(-expected / self._steps),
            steps=self._steps,
            fanouts=tuple(fanouts),
        )

    def loss(self, model: nn.Module, vectors: Tensor, seeds: LinkSeeds) -> Tensor:
        """Of this rank's edges, summed, from the vectors [len(seeds.seeds), d]."""
        sources = vectors[seeds.sources].unsqueeze(1)
        scores = score(model, sources, vectors[seeds.candidates])
        if (shared := seeds.shared) is not None:
            device = scores.device
            of_all = score(model, sources, vectors[shared.places].unsqueeze(0))
            scores = torch.cat([scores - shared.own_log_q.to(device), of_all], 1)
            # In place: with thousands of negatives a pass over scores takes as long as a tenth of the whole loss.
            scores[:, 1:] -= shared.log_q.to(device)
            edges, columns = shared.left_out.to(device)
            scores[edges, 1 + columns] = -torch.inf
            if shared.times is not None:
                times, since = (found.to(device) for found in shared.times)
                # Negatives that come later.
                scores[:, 1:].masked_fill_(since > times[:, None], -torch.inf)
        labels = torch.zeros(len(scores), dtype=torch.int64, device=scores.device)
        if self._hardest is not None:
            hardest = scores[:, 1:].topk(min(self._hardest, scores.shape[1] - 1), 1).values
            scores = torch.cat([scores[:, :1], hardest], 1)
        weights = None if seeds.weights is None else seeds.weights.to(scores.device)
        return summed_loss(self._loss, scores, labels, weights)

    @torch.no_grad()
    def measure(
        self, world: World, model: nn.Module, vectors: Tensor, splits: Sequence[str]
    ) -> dict[str, dict[str, float]]:
        """Rank each link among its negatives, those that are v itself aside, a tie counting one half. Collective.

        Gives for each split that has links "mrr", the mean of 1 / rank, and "hits@k", the share of ranks up to k.
        DataError where a score is NaN or infinite.
        `vectors` [rows of this part, d] are those of this rank's vertices. Cost: a fetch of the vectors of all pairs.
        """
        return {split: self._measure(world, model, vectors, split) for split in splits if self._links[split].numel()}

    def _measure(self, world: World, model: nn.Module, vectors: Tensor, split: str) -> dict[str, float]:
        pairs = self._links[split]
        # A key of its own: those of training are of its epochs.
        key = stream_key(self._seed, Stream.NEGATIVE, 0, list(self._links).index(split))
        wire = Wire(world, stage="evaluation", dtype=vectors.dtype, device=vectors.device)
        chunks = near_equal_split(pairs.shape[1], world.size * -(-pairs.shape[1] // (PAIRS_PER_CHUNK * world.size)))
        sums = torch.zeros(3, dtype=torch.float64)
        for start, stop in list(pairwise(chunks))[world.rank :: world.size]:
            numbers = np.arange(start, stop)
            drawn = _Pool(self._others, None).draw(numbers, numbers, self._evaluation_negatives, key)
            ids, inverse = torch.cat([pairs[:, start:stop].T, drawn], 1).unique(return_inverse=True)
            # Vectors of sampled inference are on the CPU, and a model may score by weights of its own.
            rows = fetch_rows(wire, self.graph.offsets, vectors, ids).to(device_of(model))
            inverse = inverse.to(rows.device)
            scores = score(model, rows[inverse[:, :1]], rows[inverse[:, 1:]]).double()
            found, others = scores[:, :1], scores[:, 1:]
            # v among its own negatives is none.
            other = (drawn != pairs[1, start:stop, None]).to(scores.device)
            ranks = 1 + ((others > found) & other).sum(1) + 0.5 * ((others == found) & other).sum(1)
            sums += torch.stack([(1 / ranks).sum(), (ranks <= self.k).sum(), (~scores.isfinite()).sum()]).cpu()
        reciprocal, hits, lost = world.all_reduce(sums, stage="evaluation").tolist()
        if lost:
            raise DataError(
                f"{lost:.0f} scores of {split} links are NaN or infinite: the training diverged; lower the learning "
                "rate"
            )
        return {"mrr": reciprocal / pairs.shape[1], f"hits@{self.k}": hits / pairs.shape[1]}


def _check_pairs(split: str, pairs: Tensor, num_vertices: int) -> None:
    if pairs.dim() != 2 or pairs.shape[0] != 2 or pairs.is_floating_point():
        raise DataError(
            f"{split} links are {pairs.dtype} {list(pairs.shape)}: give whole numbers [2, n], sources and destinations"
        )
    if pairs.numel() and not 0 <= int(pairs.min()) <= int(pairs.max()) < num_vertices:
        raise DataError(
            f"{split} links name vertices {int(pairs.min())} to {int(pairs.max())}, but there are 0 to "
            f"{num_vertices - 1}: split the links of this graph"
        )


def _number_of_negatives(negatives: str, number: int | None, hardest: int | None, *, keep_joined: bool) -> int:
    """How many there are; RecipeError where an option is out of range."""
    if number is None:
        number = SHARED_NEGATIVES if negatives == "shared" else OWN_NEGATIVES
    if negatives not in get_args(Negatives):
        raise RecipeError(f"negatives = {negatives!r}: choose one of {', '.join(get_args(Negatives))}")
    if keep_joined and negatives not in ("shared", "in-batch"):
        raise RecipeError(
            f'keep_joined with negatives = "{negatives}": these are drawn whatever u is joined to: leave it out'
        )
    if number < 1:
        raise RecipeError(f"num_negatives = {number}: must be at least 1")
    if hardest is not None and (hardest < 1 or (negatives != "in-batch" and hardest > number)):
        raise RecipeError(f"hardest_negatives = {hardest}: must be at least 1, and at most num_negatives = {number}")
    return number


def _found_in(
    values: npt.NDArray[np.int64], others: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Which of some values are among others, as often as they are there: (numbers of the values, places)."""
    order = others.argsort()
    which, place = numbers_in_ranges(*(np.searchsorted(others[order], values, side) for side in ("left", "right")))
    return which, order[place]


def _range_of_destinations(graph: PartitionedGraph, links: Links) -> tuple[int, int]:
    """The user's ids of the vertices of the type that links end in: all, where there are no types."""
    if graph.types is None:
        return 0, graph.num_vertices
    found = graph.types.of(torch.cat([links.train[1], links.validation[1], links.test[1]])).unique().tolist()
    names = [list(graph.types.vertices)[place] for place in found]
    if len(names) != 1:
        raise DataError(f"links end in vertices of the types {', '.join(names)}: give those of one type of edges")
    return graph.types.range_of(names[0])


def score(model: nn.Module, sources: Tensor, others: Tensor) -> Tensor:
    """[n, m] of vectors [n, 1, d] and [n, m, d], or [1, m, d]: dot products, or what the model's own `score` gives."""
    own = getattr(model, "score", None)
    if own is not None:
        found: Tensor = own(sources, others)
        return found
    if len(others) == 1:
        return sources.squeeze(1) @ others.squeeze(0).T
    return (others @ sources.transpose(1, 2)).squeeze(2)

"""Remote rows per epoch of every cache policy, over the fewest possible, and how well analysis predicts them.

    python benchmarks/vip.py [--short] [--data FOLDER]

Minibatches of 1024 seeds over all ranks are sampled for many epochs, and what each rank asks for is counted once: the
rows that a cache leaves are the counts of the remote vertices that it does not hold. The oracle keeps what those very
epochs ask for most often, so no fixed choice can ask for less. It also knows what was mere chance: the column
"foresight", a simulation of as many other epochs, shows what is left of it for who cannot see the future, and the more
epochs are counted, the nearer both are. "VIP, last hop" is the formula as it was published, for samplers that expand
the last hop's vertices only. "expected" is what analysis predicts for the cache of policy VIP, "expected, last hop"
what that formula does for its own. "S3-FIFO" is a dynamic cache of the same size, after it has seen some epochs.
"window 2" and so on are caches of that size, filled as VIP says, which then know so many minibatches ahead
(``cache.window``), so that they may ask for fewer than any choice that stays.

Points count where the oracle asks for at least a hundredth of what no cache asks for.
"""

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import numba
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from benchmarks.harness.data_sets import data_option
from benchmarks.harness.power_law import power_law_communities
from benchmarks.harness.program import Program, run_benchmark
from benchmarks.harness.result import Aim, Findings, Table
from windrow.caching.policies import score_vertices
from windrow.caching.request import index_cache, plan_request
from windrow.caching.selection import PolicyName, cache_capacity, choose_cached
from windrow.caching.vip import Demand, find_samplers
from windrow.caching.window import CacheWindow
from windrow.comm.errors import DataError
from windrow.comm.random import Stream, hash_ids, stream_key
from windrow.gnn.build import csc_from_edges, edges_of
from windrow.gnn.cache_choice import count_accesses
from windrow.gnn.sampler import NeighborSampler
from windrow.gnn.seed_order import SeedOrder
from windrow.partition import PartitionBook, PartitionOptions, partition_graph

ALPHAS = (0.0, 0.01, 0.05, 0.1, 0.2, 0.5, 1.0)
FANOUTS = ((15, 10, 5), (5, 5, 5))
DYNAMIC_EPOCHS = 10
"""That the dynamic cache sees before it is measured, and as many again while it is."""
BATCH_SIZE = 1024
SEED = 7
MOST_OVER_ORACLE = 1.03
MOST_ERROR = 0.05
LEAST_SHARE = 0.01
"""Of the rows without a cache: where fewer are left, ratios say nothing."""

POLICIES: tuple[PolicyName, ...] = (
    "vip", "simulation", "paths", "reverse-pagerank", "reachable-degree", "degree", "halo",
)  # fmt: skip
LAST_HOP, FORESIGHT, ORACLE, DYNAMIC = "VIP, last hop", "foresight", "oracle", "S3-FIFO"
EXPECTED, EXPECTED_LAST_HOP = "expected", "expected, last hop"
WINDOWS = {f"window {length}": length for length in (2, 8, 32)}
COLUMNS = (EXPECTED, *POLICIES, *WINDOWS, DYNAMIC, FORESIGHT, ORACLE, LAST_HOP, EXPECTED_LAST_HOP)

GENERATED = "generated"
REAL_SHARES: Mapping[str, float | None] = {"tolokers": None, "coauthor_physics": 0.1, "ego_twitter": 0.1}
"""Share of the vertices that train, drawn by hash; None takes the first split of the file."""


@dataclass(frozen=True)
class Setting:
    """A graph in parts, ids of the partition."""

    book: PartitionBook
    indptr: Tensor
    indices: Tensor
    train_ids: Tensor


def measure(program: Program) -> Findings:
    """Count and predict the rows of every graph, number of parts, fanouts, alpha and policy."""
    epochs, parts = (100, (4,)) if program.short else (300, (4, 8))
    names = [*REAL_SHARES] if program.short else [*REAL_SHARES, GENERATED]
    figures: dict[str, float] = {}
    aims: dict[str, Aim] = {}
    tables: dict[str, Table] = {}
    for name in names:
        if name in REAL_SHARES and not (program.options.data / "graphs" / f"{name}.npz").is_file():
            print(f"{name}: not measured, no graphs/{name}.npz in {program.options.data} (see --data)")
            aims[name] = Aim("VIP near the oracle (not measured: no data)", met=False)
            continue
        rows: list[dict[str, object]] = []
        points: list[dict[str, float]] = []
        for num_parts in parts:
            setting = cut(*read(name, program.options.data), num_parts)
            for fanouts in FANOUTS:
                start = time.perf_counter()
                for alpha, found in sweep(setting, fanouts, epochs).items():
                    points.append(found)
                    head = {"parts": num_parts, "fanouts": " ".join(map(str, fanouts)), "alpha": alpha}
                    rows.append(head | {column: round(found[column]) for column in found})
                print(f"{name}, {num_parts} parts, {fanouts}: {time.perf_counter() - start:.0f} s", flush=True)
        tables[f"{name}: remote rows per epoch, all ranks, mean of {epochs} epochs"] = Table.from_rows(rows)
        conclude_graph(name, points, figures, aims)
    return Findings(figures=figures, aims=aims, tables=tables)


def conclude_graph(name: str, points: list[dict[str, float]], figures: dict[str, float], aims: dict[str, Aim]) -> None:
    """The worst points of a graph. Points come in sweeps over alpha, each of which begins without a cache."""
    sweeps = [points[start : start + len(ALPHAS)] for start in range(0, len(points), len(ALPHAS))]
    counted = [point for sweep in sweeps for point in sweep if point[ORACLE] >= LEAST_SHARE * sweep[0][ORACLE] > 0]
    for policy in (*POLICIES, DYNAMIC, LAST_HOP, FORESIGHT):
        worst = max(point[policy] / point[ORACLE] for point in counted)
        figures[f"{name}_{policy.replace(', ', '_').replace(' ', '_')}_over_oracle_worst_ratio"] = worst
    for window in WINDOWS:
        over_vip = [point[window] / point["vip"] for sweep in sweeps for point in sweep[1:] if point in counted]
        for which, ratio in (("least", min(over_vip)), ("mean", fmean(over_vip)), ("most", max(over_vip))):
            figures[f"{name}_{window.replace(' ', '_')}_over_vip_{which}_ratio"] = ratio
    over = figures[f"{name}_vip_over_oracle_worst_ratio"]
    error = max(abs(point[EXPECTED] / point["vip"] - 1) for point in counted)
    error_last_hop = max(abs(point[EXPECTED_LAST_HOP] / point[LAST_HOP] - 1) for point in counted)
    figures[f"{name}_prediction_worst_error_percent"] = 100 * error
    figures[f"{name}_prediction_last_hop_worst_error_percent"] = 100 * error_last_hop
    aims[f"{name}_oracle"] = Aim(f"VIP <= {MOST_OVER_ORACLE:g}x the oracle's rows", over <= MOST_OVER_ORACLE)
    aims[f"{name}_prediction"] = Aim(f"rows predicted within {100 * MOST_ERROR:g} %", error <= MOST_ERROR)


def read(name: str, data: Path) -> tuple[Tensor, Tensor, npt.NDArray[np.int64]]:
    """indptr, indices and training vertices of a graph, in the user's order."""
    if name == GENERATED:
        graph = power_law_communities(
            1_000_000, 20_000_000, seed=SEED, num_communities=2000, mixing=0.15, train_share=0.01
        )
        return graph.indptr, graph.indices, graph.train_ids.numpy()
    with np.load(data / "graphs" / f"{name}.npz", allow_pickle=False) as archive:
        edges = archive["edges"].astype(np.int64)
        masks = archive.get("train_masks")
    edges -= edges.min()  # ego_twitter counts from 1
    num_vertices = int(edges.max()) + 1
    indptr, indices, _ = csc_from_edges(edges[:, 0], edges[:, 1], num_vertices, symmetrise=True)
    share = REAL_SHARES[name]
    if share is None:
        assert masks is not None
        return indptr, indices, np.flatnonzero(masks[0])
    draws = hash_ids(stream_key(SEED, Stream.SPLIT), np.arange(num_vertices))
    return indptr, indices, np.sort(np.argsort(draws)[: round(share * num_vertices)])


def cut(indptr: Tensor, indices: Tensor, train_ids: npt.NDArray[np.int64], num_parts: int) -> Setting:
    """Partition a graph with one run of METIS and renumber it."""
    options = PartitionOptions(num_parts=num_parts, restarts=1, refine_cycles=0)
    assignment = partition_graph(indptr.numpy(), indices.numpy(), options, train_ids=train_ids)
    book = PartitionBook.from_assignment(assignment, num_parts)
    sources, destinations = edges_of(indptr, indices)
    new = book.to_new(sources.numpy()), book.to_new(destinations.numpy())
    indptr, indices, _ = csc_from_edges(*new, book.num_vertices, symmetrise=False)
    return Setting(book, indptr, indices, torch.from_numpy(book.to_new(train_ids)))


def sweep(setting: Setting, fanouts: tuple[int, ...], epochs: int) -> dict[float, dict[str, float]]:
    """Rows per epoch over all ranks for each alpha: column -> rows."""
    book = setting.book
    samplers = find_samplers(setting.indptr.numpy(), setting.indices.numpy())
    sampler = NeighborSampler(
        setting.indptr, setting.indices, fanouts, seed=SEED, original_ids=torch.from_numpy(book.new_to_old)
    )
    orders = [
        SeedOrder(
            setting.train_ids, torch.from_numpy(book.new_to_old), offsets=book.offsets.tolist(), rank=part,
            batch_size=BATCH_SIZE, seed=SEED,
        )
        for part in range(book.num_parts)
    ]  # fmt: skip

    def count(first: int, number: int) -> list[npt.NDArray[np.int64]]:
        with ThreadPoolExecutor(torch.get_num_threads()) as pool:
            return list(pool.map(lambda order: count_accesses(sampler, order, range(first, first + number)), orders))

    counted, other = count(0, epochs), count(epochs, epochs)
    found = {alpha: dict.fromkeys(COLUMNS, 0.0) for alpha in ALPHAS}
    for part, order in enumerate(orders):
        start, stop = book.part_range(part)
        seeds = setting.train_ids[(setting.train_ids >= start) & (setting.train_ids < stop)].numpy()
        demand = Demand(
            indptr=setting.indptr.numpy(), indices=setting.indices.numpy(), own=(start, stop), seeds=seeds,
            steps=order.steps_per_epoch, fanouts=fanouts,
        )  # fmt: skip

        def simulate(number: int, order: SeedOrder = order) -> npt.NDArray[np.int64]:
            return count_accesses(sampler, order, range(2 * epochs, 2 * epochs + number))

        scores: dict[str, npt.NDArray[np.float64]] = {
            policy: score_vertices(policy, demand, simulate=simulate, samplers=samplers) for policy in POLICIES
        }
        scores[LAST_HOP] = last_hop_probabilities(demand)
        scores[FORESIGHT] = other[part].astype(np.float64)
        scores[ORACLE] = counted[part].astype(np.float64)
        remote = without_own(counted[part] / epochs, demand)
        expected = {
            policy: (column, without_own(scores[policy] * demand.steps, demand))
            for policy, column in (("vip", EXPECTED), (LAST_HOP, EXPECTED_LAST_HOP))
        }
        missed = dynamic_misses(sampler, order, demand, book.num_parts)
        asked = window_misses(sampler, order, book, part, choose_cached(scores["vip"], demand.own))
        for alpha in ALPHAS:
            found[alpha][DYNAMIC] += missed[alpha]
            for column in WINDOWS:
                found[alpha][column] += asked[alpha, column]
            capacity = cache_capacity(alpha, book.num_vertices, book.num_parts)
            for policy, values in scores.items():
                kept = choose_cached(values, (start, stop))[:capacity]
                found[alpha][policy] += float(remote.sum() - remote[kept].sum())
                if policy in expected:
                    column, rows = expected[policy]
                    found[alpha][column] += float(rows.sum() - rows[kept].sum())
    return found


def dynamic_misses(sampler: NeighborSampler, order: SeedOrder, demand: Demand, num_parts: int) -> dict[float, float]:
    """Rows per epoch that a dynamic cache of each size does not find, once it is full."""
    caches = {
        alpha: DynamicCache(cache_capacity(alpha, demand.num_vertices, num_parts), demand.num_vertices)
        for alpha in ALPHAS
    }
    missed = dict.fromkeys(ALPHAS, 0.0)
    start, stop = demand.own
    for epoch in range(2 * DYNAMIC_EPOCHS):
        for step in range(order.steps_per_epoch):
            ids = sampler.sample(order.seeds(epoch, step), epoch=epoch, step=step).input_ids
            remote = ids[(ids < start) | (ids >= stop)]
            for alpha, cache in caches.items():
                hits = int(cache.access(remote).sum())
                if epoch >= DYNAMIC_EPOCHS:
                    missed[alpha] += (len(remote) - hits) / DYNAMIC_EPOCHS
    return missed


def window_misses(
    sampler: NeighborSampler, order: SeedOrder, book: PartitionBook, part: int, ranking: npt.NDArray[np.int64]
) -> dict[tuple[float, str], float]:
    """Rows per epoch that a part asks for, with caches of each size that know the minibatches ahead."""
    windows = dict[tuple[float, str], CacheWindow]()
    offsets, travels = book.offsets.tolist(), [True] * book.num_parts
    nothing, asked = np.empty(0, np.int32), dict.fromkeys(((a, column) for a in ALPHAS for column in WINDOWS), 0.0)
    for alpha, column in asked:
        kept = torch.from_numpy(ranking[: cache_capacity(alpha, book.num_vertices, book.num_parts)])
        if len(kept):
            index = index_cache(kept, book.num_vertices)
            windows[alpha, column] = CacheWindow(index, kept, travels, length=WINDOWS[column])
    steps = range(order.steps_per_epoch)
    # Training goes on from epoch to epoch.
    ids = (sampler.sample(order.seeds(e, n), epoch=e, step=n).input_ids for e in range(DYNAMIC_EPOCHS) for n in steps)
    requests = [plan_request(one, offsets, part, nothing) for one in ids]
    for point in asked:
        window = windows.get(point)
        planned = requests if window is None else window.planned(requests)
        asked[point] = sum(len(request.remote) for request in planned) / DYNAMIC_EPOCHS
    return asked


def without_own(rows: npt.NDArray[np.float64], demand: Demand) -> npt.NDArray[np.float64]:
    """The same with 0 for the rank's own vertices."""
    rows[slice(*demand.own)] = 0.0
    return rows


def last_hop_probabilities(demand: Demand) -> npt.NDArray[np.float64]:
    """The formula of SALIENT++ as published: a hop expands what the last one found; undirected graphs only."""
    degrees = np.diff(demand.indptr)
    found = np.zeros(demand.num_vertices)
    found[demand.seeds] = 1 / demand.steps
    rest = np.ones(demand.num_vertices)
    for fanout in demand.fanouts:
        # All but certain: the difference of sums below must not be that of infinities.
        drawn = np.minimum(1 - 1e-12, found * np.minimum(1, fanout / np.maximum(1, degrees)))
        sums = np.concatenate([[0.0], np.cumsum(np.log1p(-drawn)[demand.indices])])
        found = -np.expm1(np.minimum(0.0, np.diff(sums[demand.indptr])))
        rest *= 1 - found
    return 1 - rest


Longs = npt.NDArray[np.int64]

SMALL_SHARE = 0.1
"""Share of the room that the small queue has; from the paper, which found anything from .05 to .2 to do."""


class DynamicCache:
    """S3-FIFO: which ids a cache holds that decides for itself, by what is used, what to keep. It holds no rows.

        new id  ->  small queue, a tenth of the room  -- used again twice -->  main queue, the rest  -- unused -->  gone
                            |                                    ^  |  used: round again, one use less
                            | otherwise                          |  +-----+
                            v                                    |
                     forgotten: remembered by id only  -- used --+

    Most ids are used once, and leave through the small queue soon, so that they push nothing out that is used often.

    Yang, Zhang, Qiu, Yue, Rashmi: FIFO queues are all you need for cache eviction, SOSP 2023. As there, a tenth of the
    room is the small queue's, uses are counted up to 3, and as many ids are remembered as the main queue has room for.

    Args:
        capacity: ids that it holds at most, from 0.
        num_vertices: N; ids are 0 to N - 1.

    Cost: 10 bytes for each vertex and 16 for each id held; some nanoseconds for each use.
    """

    def __init__(self, capacity: int, num_vertices: int) -> None:
        if capacity < 0:
            raise ValueError(f"a cache of {capacity} ids: there must be 0 or more")
        self.capacity = capacity
        self.num_vertices = num_vertices
        small_share = min(capacity, max(1, round(SMALL_SHARE * capacity)))
        self._shares = (small_share, capacity - small_share)
        self._uses = np.zeros(num_vertices, np.uint8)
        self._queue = np.zeros(num_vertices, np.uint8)
        self._forgotten = np.zeros(num_vertices, np.int64)
        self._small = np.zeros(capacity, np.int64)
        self._main = np.zeros(capacity, np.int64)
        self._cursors = np.zeros(5, np.int64)

    def access(self, ids: Tensor) -> Tensor:
        """Use ids one after another, and let in those that are not cached.

        Args:
            ids: int64 [n] on the CPU; may repeat.

        Returns:
            bool [n]: whether each was cached when its turn came.

        Raises:
            DataError: an id is out of range.
        """
        array = ids.contiguous().numpy()
        outside = (array < 0) | (array >= self.num_vertices)
        if outside.any():
            position = int(outside.argmax())
            raise DataError(
                f"id {array[position]} at position {position} is out of range: ids are 0 to {self.num_vertices - 1}. "
                "Check that the ids are in the numbering of this partition"
            )
        found = np.zeros(len(array), np.bool_)
        if self.capacity > 0:
            use_one_after_another(
                array,
                self._shares,
                self._uses,
                self._queue,
                self._forgotten,
                self._small,
                self._main,
                self._cursors,
                found,
            )
        return torch.from_numpy(found)


NOWHERE, SMALL, MAIN = 0, 1, 2
"""The queue that an id stands in."""

MOST_USES = 3
"""Uses are counted in two bits."""

SMALL_HEAD, SMALL_COUNT, MAIN_HEAD, MAIN_COUNT, NUM_FORGOTTEN = 0, 1, 2, 3, 4
"""Places of the cursors: oldest entry and length of each ring, and how many ids the small queue has ever let
go."""


@numba.njit(nogil=True)
def _evict_from_main(uses: npt.NDArray[np.uint8], queue: npt.NDArray[np.uint8], main: Longs, cursors: Longs) -> None:
    """Let go the oldest id that was not used since it last came by; the others go round again, one use less."""
    while True:
        oldest = main[cursors[MAIN_HEAD]]
        cursors[MAIN_HEAD] = (cursors[MAIN_HEAD] + 1) % main.size
        if uses[oldest] == 0:
            break
        uses[oldest] -= np.uint8(1)
        main[(cursors[MAIN_HEAD] + cursors[MAIN_COUNT] - 1) % main.size] = oldest
    cursors[MAIN_COUNT] -= 1
    queue[oldest] = NOWHERE


@numba.njit(nogil=True)
def use_one_after_another(  # noqa: PLR0917 - a compiled loop
    ids: Longs,
    shares: tuple[int, int],
    uses: npt.NDArray[np.uint8],
    queue: npt.NDArray[np.uint8],
    forgotten: Longs,
    small: Longs,
    main: Longs,
    cursors: Longs,
    found: npt.NDArray[np.bool_],
) -> None:
    """Use ids [n] one after another, and write to `found` [n], False before, whether each was cached at its turn.

    `shares` are the room of the small and the main queue, together the capacity, at least 1. Of each id there is,
    `uses` [N] counts uses while it is cached, `queue` [N] says which queue it stands in, and `forgotten` [N] as how
    many-th the small queue let it go unused; 0 for never. `small` and `main` [capacity] are rings of ids; `cursors`:
    see `SMALL_HEAD`.
    """
    small_share, main_share = shares
    capacity = small_share + main_share
    for i in range(ids.size):
        key = ids[i]
        if queue[key] != NOWHERE:
            found[i] = True
            uses[key] = min(uses[key] + 1, MOST_USES)
            continue
        while cursors[SMALL_COUNT] + cursors[MAIN_COUNT] >= capacity:
            if cursors[SMALL_COUNT] < small_share:
                _evict_from_main(uses, queue, main, cursors)
                continue
            oldest = small[cursors[SMALL_HEAD]]
            cursors[SMALL_HEAD] = (cursors[SMALL_HEAD] + 1) % capacity
            cursors[SMALL_COUNT] -= 1
            if uses[oldest] > 1 and main_share > 0:
                queue[oldest] = MAIN
                uses[oldest] = 0
                if cursors[MAIN_COUNT] >= main_share:
                    _evict_from_main(uses, queue, main, cursors)
                main[(cursors[MAIN_HEAD] + cursors[MAIN_COUNT]) % capacity] = oldest
                cursors[MAIN_COUNT] += 1
            else:
                queue[oldest] = NOWHERE
                cursors[NUM_FORGOTTEN] += 1
                forgotten[oldest] = cursors[NUM_FORGOTTEN]
        uses[key] = 0
        if forgotten[key] > 0 and cursors[NUM_FORGOTTEN] - forgotten[key] < main_share:
            queue[key] = MAIN
            main[(cursors[MAIN_HEAD] + cursors[MAIN_COUNT]) % capacity] = key
            cursors[MAIN_COUNT] += 1
        else:
            queue[key] = SMALL
            small[(cursors[SMALL_HEAD] + cursors[SMALL_COUNT]) % capacity] = key
            cursors[SMALL_COUNT] += 1
        forgotten[key] = 0


if __name__ == "__main__":
    run_benchmark(__file__, __doc__, measure, add_options=data_option("graphs/ego_twitter.npz"))

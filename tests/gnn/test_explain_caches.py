"""windrow.gnn.explain_caches: against each part's own ranking; curves fall, marks stand where they belong."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from windrow.caching.selection import CacheOptions
from windrow.comm.errors import DataError
from windrow.comm.links import Links, NetworkDescription, described_links
from windrow.comm.wire import WireOptions
from windrow.gnn.cache_choice import Sampling, rank_part
from windrow.gnn.epoch_estimate import EpochTime, StepWork, estimate_epoch
from windrow.gnn.explain_caches import Explanation, SizeEstimate, describe_explanation, explain, write_explanation_plot
from windrow.gnn.partitioned import PartitionedGraph
from windrow.gnn.sampler import SamplerOptions
from windrow.gnn.synthetic import community_graph
from windrow.partition.book import PartitionBook

PARTS = 4
ROW_BYTES = 4 * 6
WORK = StepWork(processor_s=0.02, device_s=0.0, gradient_numbers=10)


@pytest.fixture(scope="module")
def graph() -> PartitionedGraph:
    made = community_graph(800, 4, seed=5, num_features=6, homophily=0.6)
    return PartitionedGraph.from_graph(made, PartitionBook.from_assignment(np.arange(800) % PARTS, PARTS), 0)


def sampling(memory_rows: float = 100, **changes: Any) -> Sampling:
    given = {
        "sampler": SamplerOptions(fanouts=(3, 2)),
        "cache": CacheOptions(memory_gib=memory_rows * ROW_BYTES / 2**30),
        "wire": WireOptions(),
        "batch_size": 80,
        "epochs": 5,
        "seed": 0,
    }
    return Sampling(**(given | changes))


def network(rate: str) -> Links:
    return described_links(NetworkDescription(nodes=PARTS, rate=rate, latency_us=1.0))


def check(found: Explanation) -> None:
    alphas = [one.alpha for one in found.sizes]
    assert alphas == sorted(set(alphas))
    for sizes in (found.sizes, found.curve):
        assert (np.diff([one.remote_rows for one in sizes]) <= 0).all()
        assert (np.diff([one.kept_rows for one in sizes]) >= 0).all()
    assert set(found.marks.values()) <= set(found.sizes)


def test_nothing_is_cached_of_a_graph_without_features(graph: PartitionedGraph) -> None:
    with pytest.raises(DataError, match="no features, which caches are about"):
        explain(dataclasses.replace(graph, features=graph.features[:, :0]), sampling())


def test_rows_bytes_and_memory_without_a_network(graph: PartitionedGraph) -> None:
    found = explain(graph, sampling(), alphas=(0.0, 0.25, 50.0))
    check(found)
    assert 50.0 not in [one.alpha for one in found.sizes]
    quarter = next(one for one in found.sizes if one.alpha == 0.25)
    assert quarter.remote_bytes == pytest.approx(quarter.remote_rows * (8 + ROW_BYTES))
    assert (quarter.kept_rows, quarter.memory_bytes) == (50, 50 * ROW_BYTES)
    assert all(one.time is None for one in found.sizes)
    assert (found.marks["all"].alpha, found.marks["all"].remote_rows) == (PARTS - 1, 0)
    assert found.marks["auto"].kept_rows == 100
    assert found.marks["recipe"] is found.marks["auto"]
    assert "knee" not in found.marks, "there are no times"


def test_short_wires_make_short_copies(graph: PartitionedGraph) -> None:
    found = explain(graph, sampling(wire=WireOptions(vectors="fp16")), alphas=(0.0,))
    assert (found.row_bytes, found.wire_row_bytes) == (ROW_BYTES, ROW_BYTES // 2)
    assert (found.marks["auto"].kept_rows, found.marks["auto"].memory_bytes) == (200, 100 * ROW_BYTES)
    assert found.sizes[0].remote_bytes == pytest.approx(found.sizes[0].remote_rows * (8 + ROW_BYTES // 2))


def test_the_recipe_may_have_chosen(graph: PartitionedGraph) -> None:
    found = explain(graph, sampling(cache=CacheOptions(alpha=0.77, policy="degree")), alphas=(0.0,))
    check(found)
    assert (found.marks["recipe"].alpha, found.marks["recipe"].kept_rows) == (0.77, 154)
    assert found.marks["auto"].alpha > 0.77


def test_the_knee_is_where_the_network_is_hidden(graph: PartitionedGraph) -> None:
    asked = sampling()
    knees = []
    for rate in ("250kbit", "1mbit", "10gbit"):
        found = explain(graph, asked, alphas=(0.0,), links=network(rate), work=WORK)
        check(found)
        seconds = [one.time.seconds(pipelined=True) for one in found.curve if one.time is not None]
        assert found.marks["knee"].time is not None
        at_knee = found.marks["knee"].time.seconds(pipelined=True)
        assert at_knee <= 1.01 * min(seconds)
        assert all(other > 1.01 * min(seconds) for other in seconds[: seconds.index(at_knee)])
        knees.append(found.marks["knee"].alpha)
    assert knees[0] > knees[1] > knees[2] == 0


def test_time_is_that_of_the_rows_of_a_step(graph: PartitionedGraph) -> None:
    links = network("10mbit")
    found = explain(graph, sampling(), alphas=(0.0,), links=links, work=WORK)
    asked = np.stack([rank_part(graph, part, sampling()).expected_rows([0])[0] for part in range(PARTS)])
    expected = estimate_epoch(WORK, links, asked / found.steps, ROW_BYTES, steps=found.steps)
    time = found.sizes[0].time
    assert time is not None
    assert time.exchange_s == pytest.approx(expected.exchange_s)
    assert found.marks["all"].time is not None
    assert found.marks["all"].time.exchange_s == 0


def test_ranks_of_one_host_share_memory(graph: PartitionedGraph) -> None:
    pairs = dataclasses.replace(network("4mbit"), hosts=tuple(f"host{part // 2}" for part in range(PARTS)))
    apart = dataclasses.replace(sampling(), cache=dataclasses.replace(sampling().cache, shared_memory=False))
    near, far = (explain(graph, asked, links=pairs, work=WORK) for asked in (sampling(), apart))
    assert 0 < near.curve[0].remote_rows < far.curve[0].remote_rows
    assert near.marks["all"].alpha < far.marks["all"].alpha
    single = dataclasses.replace(pairs, hosts=("host",) * PARTS)
    alone = explain(graph, sampling(), links=single, work=WORK)
    assert [(one.alpha, one.remote_rows) for one in alone.sizes] == [(0, 0)]
    assert alone.sizes[0].time is not None
    assert alone.sizes[0].time.exchange_s == 0
    assert "in shared memory: none travel" in describe_explanation(alone, sampling(), network="one", computed="here")


def test_without_a_pipeline_every_row_counts(graph: PartitionedGraph) -> None:
    links = network("4mbit")
    with_one = explain(graph, sampling(), links=links, work=WORK)
    without = explain(graph, sampling(), pipelined=False, links=links, work=WORK)
    assert without.marks["knee"].alpha > with_one.marks["knee"].alpha


def test_numbers_go_into_json(graph: PartitionedGraph) -> None:
    found = explain(graph, sampling(), links=network("4mbit"), work=WORK)
    back = json.loads(json.dumps(dataclasses.asdict(found)))
    assert back["sizes"][0]["remote_rows"] == found.sizes[0].remote_rows
    assert found.marks["knee"].time is not None
    assert back["marks"]["knee"]["time"]["exchange_s"] == found.marks["knee"].time.exchange_s


UNEVEN_PARTS = 3


@pytest.fixture(scope="module")
def uneven() -> PartitionedGraph:
    made = community_graph(900, 3, seed=5, num_features=6)
    book = PartitionBook.from_assignment(np.arange(900) % 7 // 3, UNEVEN_PARTS)
    return PartitionedGraph.from_graph(made, book, 0)


def surveyed(memory_rows: float = 1e6, epochs: int = 5) -> Sampling:
    return sampling(memory_rows, sampler=SamplerOptions(fanouts=(2, 1)), batch_size=30, epochs=epochs)


def test_parts_are_those_of_their_own_ranking(uneven: PartitionedGraph) -> None:
    found = explain(uneven, surveyed(), alphas=[0.5, 0.0])
    rankings = [rank_part(uneven, part, surveyed()) for part in range(UNEVEN_PARTS)]
    sizes = {one.alpha: one for one in found.sizes}
    for alpha, capacity in ((0.5, 150), (0.0, 0)):
        assert sizes[alpha].remote_rows == pytest.approx(sum(one.expected_rows([capacity]).sum() for one in rankings))
        assert sizes[alpha].kept_rows == max(len(one.kept(capacity)) for one in rankings)
    assert found.steps == rankings[0].steps
    assert found.input_rows == pytest.approx(sum(ranking.input_rows for ranking in rankings))
    assert found.curve[-1].kept_rows <= max(ranking.worthwhile(5) for ranking in rankings)


def test_everything_is_every_row_of_the_others(uneven: PartitionedGraph) -> None:
    everything = explain(uneven, surveyed()).marks["all"]
    smallest = min(uneven.book.part_size(part) for part in range(UNEVEN_PARTS))
    assert smallest < 300
    assert (everything.kept_rows, everything.remote_rows) == (900 - smallest, 0)
    assert everything.alpha == pytest.approx(UNEVEN_PARTS * (900 - smallest) / 900)


def test_the_automatic_size(uneven: PartitionedGraph) -> None:
    plenty = explain(uneven, surveyed(epochs=500))
    assert plenty.marks["auto"] is plenty.marks["all"]
    short = explain(uneven, surveyed(memory_rows=100)).marks["auto"]
    rankings = [rank_part(uneven, part, surveyed()) for part in range(UNEVEN_PARTS)]
    assert (short.kept_rows, short.alpha) == (100, pytest.approx(100 * UNEVEN_PARTS / 900))
    assert short.remote_rows == pytest.approx(sum(one.expected_rows([100]).sum() for one in rankings))
    worth_it = explain(uneven, surveyed(epochs=1))
    assert worth_it.marks["auto"].kept_rows == max(one.worthwhile(1) for one in rankings)
    assert worth_it.marks["auto"] is not worth_it.marks["all"]
    assert explain(uneven, surveyed(memory_rows=0)).marks["auto"].kept_rows == 0


SAMPLING = sampling(sampler=SamplerOptions(fanouts=(7, 5)), cache=CacheOptions(memory_gib=0.25))


def size(alpha: float, rows: float, *, timed: bool) -> SizeEstimate:
    time = EpochTime(processor_s=2.0, device_s=1.0, exchange_s=rows / 1e5, reduction_s=0.5) if timed else None
    return SizeEstimate(
        alpha=alpha,
        kept_rows=round(1000 * alpha),
        memory_bytes=round(40_000 * alpha),
        remote_rows=rows,
        remote_bytes=48 * rows,
        time=time,
    )


def explanation(*, timed: bool, device_s: float = 0.0) -> Explanation:
    none, some, everything = (size(a, r, timed=timed) for a, r in ((0.0, 4e5), (0.5, 1e5), (3.0, 0.0)))
    return Explanation(
        num_vertices=4000,
        num_parts=4,
        steps=12,
        input_rows=6e5,
        row_bytes=40,
        wire_row_bytes=20,
        work=StepWork(processor_s=0.025, device_s=device_s, gradient_numbers=1) if timed else None,
        sizes=(none, some, everything),
        curve=(none, some, everything),
        formats=(),
        marks={"knee": some, "auto": everything, "all": everything, "recipe": some},
    )


def rows_of(text: str) -> list[str]:
    """The lines of the table, one for each size of a cache."""
    return [line for line in text.splitlines() if line.startswith(("0 ", "0.5 ", "3 "))]


def test_without_a_network_it_says_how_to_get_one() -> None:
    text = describe_explanation(explanation(timed=False), SAMPLING, network="", computed="")
    assert text.startswith("4,000 vertices in 4 parts; 12 steps an epoch\nfanouts 7, 5; cache policy vip\n")
    assert "an epoch needs 600k rows; a row takes 40 B locally, 20 B in a cache and on the wire" in text
    assert "mpirun -n 4 windrow network" in text
    assert "exchange s" not in text
    none, some, everything = rows_of(text)
    assert none.split() == ["0", "0", "0", "B", "400k", "100", "%", "18.3", "MiB"]
    assert some.endswith("knee, recipe")
    assert "25 %" in some
    assert everything.endswith("auto, all")


def test_shares_are_of_alpha_0_whether_it_is_shown_or_not() -> None:
    found = explanation(timed=False)
    text = describe_explanation(dataclasses.replace(found, sizes=found.sizes[1:]), SAMPLING, network="", computed="")
    assert ["25 %" in row for row in rows_of(text)] == [True, False]


def test_with_a_network_both_times_are_shown() -> None:
    text = describe_explanation(explanation(timed=True), SAMPLING, network="net.toml", computed="measured here")
    assert "network: net.toml; a step is 25 ms of work, measured here" in text
    assert rows_of(text)[0].split()[-3:] == ["4", "7.5", "5.25"]
    text = describe_explanation(
        explanation(timed=True, device_s=0.003), SAMPLING, network="n", computed="measured here"
    )
    assert "25 ms of work of the processor and 3 ms of the GPU" in text


@pytest.mark.parametrize("timed", [False, True])
def test_a_picture_is_written(tmp_path: Path, timed: bool) -> None:
    path = tmp_path / "explain.png"
    write_explanation_plot(explanation(timed=timed), path, title="tolokers")
    assert path.read_bytes().startswith(b"\x89PNG")
    assert path.stat().st_size > 10_000

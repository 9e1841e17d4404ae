"""windrow.partition.tables.costs: a plan's cost, rank by rank, against the same worked out by hand."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.comm.errors import PlanError
from windrow.comm.link_model import predict_all_reduce
from windrow.comm.links import CollectiveCost, Links, NetworkDescription, described_links
from windrow.comm.wire import WireOptions
from windrow.partition.tables import Plan, Replica, Shard, TableSpec, rank_bytes
from windrow.partition.tables.cost_model import ComputeModel, Piece, piece_features, roof_terms
from windrow.partition.tables.costs import (
    DENSE_SECONDS_PER_BYTE,
    EVERY_ROW_SECONDS_PER_NUMBER,
    FORWARD_SHARE,
    LANDING_SECONDS_PER_BYTE,
    LANDING_SECONDS_PER_ROW,
    STATE_SECONDS_PER_NUMBER,
    TableCosts,
    Traffic,
    Workload,
    exchange_seconds,
)

SPECS = [
    TableSpec(name="a", rows=1000, dim=16, features=("a",), lookups_per_sample=3.0),
    TableSpec(name="b", rows=500, dim=8, features=("b",)),
]
THETA, GAMMA = 8e-9, 1e-4
"""Seconds per byte of 1 Gbit/s, and latency."""


def network(size: int, hosts: list[str] | None = None) -> Links:
    return Links(
        hosts=tuple(hosts or (f"host{rank}" for rank in range(size))),
        latency_s=np.full((size, size), GAMMA),
        seconds_per_byte=np.full((size, size), THETA),
        hidden_s=np.zeros((size, size)),
    )


def test_learning_costs_what_its_rule_moves(hand_made: ComputeModel) -> None:
    plan = Plan((Shard("a", 0, (0, 1000), (0, 16)), Shard("b", 1, (0, 500), (0, 8))))

    def seconds(*, learns: bool = True, **of_a: object) -> np.ndarray:
        specs = [replace(SPECS[0], **of_a), SPECS[1]]
        return TableCosts(specs, 2, Workload(batch_size=100, learns=learns), hand_made).of_plan(plan).compute

    usual = seconds(optimizer_bytes_per_row=4.0)
    adam = {"optimizer_bytes_per_row": 8.0 * 16, "moves_every_row": True}
    np.testing.assert_allclose(seconds(**adam) - usual, [EVERY_ROW_SECONDS_PER_NUMBER * 1000 * 16, 0], atol=1e-12)
    distinct = piece_features(SPECS[0], (0, 1000), 16, 100, ranks=2)[2]
    adagrad = seconds(optimizer_bytes_per_row=4.0 * 16)
    np.testing.assert_allclose(adagrad - usual, [STATE_SECONDS_PER_NUMBER * distinct * 16, 0], atol=1e-12)
    np.testing.assert_allclose(seconds(**adam, learns=False), seconds(learns=False))
    np.testing.assert_allclose(seconds(**adam, compressed_bytes=640), seconds(compressed_bytes=640))


def test_a_published_model_prices_row_wise_adagrad_alone(hand_made: ComputeModel) -> None:
    published = replace(hand_made, design="published")
    TableCosts(SPECS, 2, Workload(), published)
    with pytest.raises(PlanError, match="table 'a' learns by other rules than row-wise Adagrad"):
        TableCosts([replace(SPECS[0], optimizer_bytes_per_row=64.0)], 2, Workload(), published)


def test_an_exchange_of_equal_parts() -> None:
    sent = np.full((4, 4), 1000.0)
    np.testing.assert_allclose(exchange_seconds(network(4), sent, np.zeros(4)), GAMMA + 3 * 1000 * THETA)
    np.testing.assert_allclose(exchange_seconds(network(4), np.zeros((4, 4)), np.arange(4.0)), 0)


def test_everyone_waits_for_who_starts_late() -> None:
    found = exchange_seconds(network(2), np.full((2, 2), 1000.0), np.array([0.0, 1.0]))
    # What the early one sent is there by the time the late one has sent its own.
    np.testing.assert_allclose(found, [1 + GAMMA + 1000 * THETA, 1000 * THETA])


def test_a_port_takes_what_arrives_in_turn() -> None:
    sent = np.zeros((3, 3))
    sent[1:, 0] = 1000
    together = exchange_seconds(network(3), sent, np.zeros(3))
    assert together[0] == pytest.approx(GAMMA + 2 * 1000 * THETA)
    assert together[1] == pytest.approx(1000 * THETA)
    # Ranks 1 and 2 share a host's port: their messages leave one after another.
    on_two_hosts = exchange_seconds(network(3, ["x", "y", "y"]), sent, np.zeros(3))
    assert on_two_hosts[0] == pytest.approx(GAMMA + 2 * 1000 * THETA)


@given(
    starts=st.lists(st.floats(0, 1), min_size=3, max_size=3), sent=st.lists(st.floats(0, 1e6), min_size=9, max_size=9)
)
def test_no_rank_is_done_before_its_bytes_can_be_there(starts: list[float], sent: list[float]) -> None:
    matrix = np.array(sent).reshape(3, 3) * (1 - np.eye(3))
    found = exchange_seconds(network(3), matrix, np.array(starts)) + np.array(starts)
    for rank in range(3):
        senders = [peer for peer in range(3) if matrix[peer, rank] > 0]
        assert found[rank] >= starts[rank]
        for peer in senders:
            assert found[rank] >= starts[peer] + GAMMA + matrix[peer, rank] * THETA - 1e-12
    # Later starts end no earlier.
    later = exchange_seconds(network(3), matrix, np.array(starts) + 0.5) + np.array(starts) + 0.5
    np.testing.assert_allclose(later, found + 0.5)


@given(st.data())
def test_an_exchange_is_what_its_formulas_say(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 6))
    hosts = data.draw(st.lists(st.sampled_from("xyz"), min_size=size, max_size=size))
    chance = np.random.default_rng(data.draw(st.integers(0, 99)))
    links = replace(
        network(size, hosts),
        seconds_per_byte=chance.uniform(1e-9, 1e-8, (size, size)),
        latency_s=chance.uniform(0, 1e-3, (size, size)),
        shared_seconds_per_byte=data.draw(st.sampled_from([0.0, 1e-8])),
        all_to_all=CollectiveCost(latency_factor=1.5, stretch=0.8),
    )
    sent = chance.uniform(0, 1e6, (size, size)) * chance.integers(0, 2, (size, size))
    starts = chance.integers(0, 3, size) * 1e-3
    ranks = range(size)
    travels = [[sent[k, q] if k != q else 0.0 for q in ranks] for k in ranks]
    theta, latency = 0.8 * links.seconds_per_byte, 1.5 * links.latency_s
    mates = [[q for q in ranks if hosts[q] == hosts[k]] for k in ranks]

    def seconds(sources: list[int], targets: list[int], inside: bool) -> float:
        pairs = product(sources, targets)
        return sum(travels[k][q] * theta[k, q] for k, q in pairs if (hosts[k] == hosts[q]) == inside)

    left = [starts[k] + max(seconds(mates[k], list(ranks), False), seconds([k], list(ranks), True)) for k in ranks]
    turn = sorted(ranks, key=lambda k: -starts[k])
    for q in ranks:
        ends = [starts[q]]
        senders = [k for k in ranks if travels[k][q] > 0]
        if senders or any(travels[q]):
            ends += [left[q], *(left[k] + latency[k, q] for k in senders)]
        queued, slowest = 0.0, max((latency[k, q] for k in senders), default=0.0)
        for k in turn:
            arriving = seconds([k], [q], True) + seconds([k], mates[q], False)
            queued += arriving
            # What goes to others of the host takes turns at its port, too.
            if arriving > 0 and (senders or any(travels[q])):
                ends.append(starts[k] + queued + slowest)
        if np.any(travels):
            ends.append(starts.min() + 0.8 * links.shared_seconds_per_byte * np.sum(travels))
        assert exchange_seconds(links, sent, starts)[q] == pytest.approx(max(ends) - starts[q])


def test_a_plan_by_hand(hand_made: ComputeModel) -> None:
    workload = Workload(batch_size=100, links=network(2), wire=WireOptions(vectors="fp16"), id_bytes=4.0)
    costs = TableCosts(SPECS, 2, workload, hand_made)
    plan = Plan((Shard("a", 0, (0, 1000), (0, 8)), Shard("a", 1, (0, 1000), (8, 16))), (Replica("b", (0, 500)),))
    found = costs.of_plan(plan)

    def roof(spec: TableSpec, columns: int, samples: int) -> float:
        features = piece_features(spec, (0, spec.rows), columns, samples)[None]
        return float((roof_terms(features) @ hand_made.roof[:-1])[0])

    alone = hand_made.roof[-1] + roof(SPECS[0], 8, 200) + roof(SPECS[1], 8, 100)
    np.testing.assert_allclose(found.compute, alone)
    # 300 ids and 100 lengths to the other rank; 100 vectors of 8 half numbers; gradients of 8 whole ones.
    np.testing.assert_allclose(found.ids, GAMMA + 400 * 4 * THETA)
    np.testing.assert_allclose(found.forward, GAMMA + 800 * 2 * THETA)
    np.testing.assert_allclose(found.backward, GAMMA + 800 * 4 * THETA)
    # Summed, and zeroed and learnt from, row by row.
    assert found.sums == pytest.approx(
        predict_all_reduce(network(2), 500 * 8 * 4) + DENSE_SECONDS_PER_BYTE * 500 * 8 * 4
    )
    assert found.memory.tolist() == rank_bytes(plan, SPECS, 2)
    # Vectors of both, of 16 and 8 numbers, and their gradients.
    assert found.landing == pytest.approx(LANDING_SECONDS_PER_BYTE * 2 * 4 * 100 * 24)
    parts = (found.ids, found.compute, found.backward, found.forward)
    assert found.total == pytest.approx(sum(float(part[0]) for part in parts) + found.landing + found.sums)
    assert costs.least_possible() < found.total


def test_few_bits_have_a_scale_for_each_vector_and_blocks_of_a_sum(hand_made: ComputeModel) -> None:
    wire = WireOptions(vectors="int8", gradients="int4", sums="fp8")
    costs = TableCosts(SPECS, 2, Workload(batch_size=100, links=network(2), wire=wire), hand_made)
    whole, half = (costs.traffic(Piece("a", (0, 1000), (0, columns))) for columns in (16, 8))
    assert (whole.vectors, whole.gradients) == (100 * (16 + 4), 100 * (8 + 4))
    assert (half.vectors, half.gradients) == (100 * (8 + 4), 100 * (4 + 4))
    # A number of 8 bits, and 4 bytes for 256 of them, to the other rank and back.
    travels = (4000 + 4 * 16) / 2
    plan = Plan((Shard("a", 0, (0, 1000), (0, 16)),), (Replica("b", (0, 500)),))
    summed = costs.of_plan(plan).sums - DENSE_SECONDS_PER_BYTE * 4 * 4000
    assert summed == pytest.approx(2 * (GAMMA + travels * THETA), rel=0.01)


def test_of_a_compressed_table_what_is_stored_is_summed(hand_made: ComputeModel) -> None:
    specs = [SPECS[0], replace(SPECS[1], compressed_bytes=800)]
    plan = Plan((), (Replica("a", (0, 1000)), Replica("b", (0, 200)), Replica("b", (200, 500))))
    found = TableCosts(specs, 2, Workload(links=network(2)), hand_made).of_plan(plan)
    stored = 1000 * 16 * 4 + 800
    assert found.sums == pytest.approx(predict_all_reduce(network(2), stored) + DENSE_SECONDS_PER_BYTE * stored)


def test_groups_look_up_among_themselves_and_exchange_rows(hand_made: ComputeModel) -> None:
    workload = Workload(batch_size=100, links=network(4))
    plan = Plan((Shard("a", 0, (0, 1000), (0, 16)), Shard("b", 1, (0, 500), (0, 8))), replica_groups=2)
    found = TableCosts(SPECS, 4, workload, hand_made, replica_groups=2).of_plan(plan)
    alone = TableCosts(SPECS, 2, Workload(batch_size=100, links=network(2)), hand_made).of_plan(plan)
    for part in ("ids", "compute", "backward", "forward", "memory"):
        np.testing.assert_array_equal(getattr(found, part), getattr(alone, part))
    assert alone.sums == 0
    # Rank 0 sends rank 2 its rows of a, 600 lookups of a thousand, each with its number.
    rows = 1000 * (1 - np.exp(-0.6))
    assert found.sums == pytest.approx(GAMMA + rows * (8 + 4 * 16) * THETA)


def test_what_equal_lists_and_neighbours_save(hand_made: ComputeModel) -> None:
    once = TableSpec(name="a", rows=1000, dim=16, features=("a",), lookups_per_sample=1.5, lists_per_sample=0.5)
    workload = Workload(batch_size=100, links=network(2))
    full, saved = (TableCosts([spec], 2, workload, hand_made) for spec in (SPECS[0], once))
    piece = Piece("a", (0, 1000), (0, 16))
    assert saved.traffic(piece) == Traffic(*(bytes_ / 2 for bytes_ in (4 * 400.0, 4 * 1600.0, 4 * 1600.0)))
    assert saved.vectors([piece])[0, -1] < full.vectors([piece])[0, -1]
    halves = [Piece("a", (0, 1000), (0, 8)), Piece("a", (0, 1000), (8, 16))]
    assert full.traffic_of_rank(halves) == full.traffic(piece)
    assert sum((full.traffic(half) for half in halves), Traffic(0, 0, 0)).ids == 2 * full.traffic(piece).ids


def test_what_travels_of_some_rows(hand_made: ComputeModel) -> None:
    """Lists that have any of them: a vector each where they are summed, and one for each id where they are not."""
    bags, rows = (
        TableCosts([replace(SPECS[0], pooled=pooled)], 2, Workload(batch_size=100, links=network(2)), hand_made)
        for pooled in (True, False)
    )
    tenth = Piece("a", (0, 100), (0, 16))
    filled = 100 * (1 - 0.9**3)
    assert bags.traffic(tenth).vectors == pytest.approx(filled * 16 * 4)
    assert bags.traffic(tenth).ids == pytest.approx(4 * (30 + filled))
    assert rows.traffic(tenth).vectors == pytest.approx(30 * 16 * 4)
    assert rows.traffic(tenth).ids == pytest.approx(4 * 30)
    assert rows.traffic(Piece("a", (0, 1000), (0, 16))).gradients == pytest.approx(300 * 16 * 4)


def test_of_tables_that_do_not_learn_no_gradients_travel(hand_made: ComputeModel) -> None:
    workload = Workload(batch_size=100, links=network(2))
    plan = Plan((Shard("a", 0, (0, 1000), (0, 16)),), (Replica("b", (0, 500)),))
    learns, looks_up = (
        TableCosts(SPECS, 2, replace(workload, learns=learns), hand_made).of_plan(plan) for learns in (True, False)
    )
    assert looks_up.sums == 0 < learns.sums
    np.testing.assert_array_equal(looks_up.backward, 0)
    np.testing.assert_array_equal(looks_up.ids, learns.ids)
    np.testing.assert_allclose(looks_up.compute, FORWARD_SHARE * learns.compute)
    assert looks_up.landing == learns.landing / 2


def test_one_rank_and_no_network_send_nothing(hand_made: ComputeModel) -> None:
    for size, links in ((1, None), (2, None)):
        costs = TableCosts(SPECS, size, Workload(links=links), hand_made)
        found = costs.of_plan(Plan(tuple(Shard(spec.name, 0, (0, spec.rows), (0, spec.dim)) for spec in SPECS)))
        assert found.total == pytest.approx(float(found.compute.max()) + found.landing)
        assert (found.landing > 0) == (size > 1)


def test_a_described_network() -> None:
    links = described_links(NetworkDescription(nodes=2, rate="1gbit", latency_us=100.0))
    np.testing.assert_allclose(exchange_seconds(links, np.full((2, 2), 1e6), np.zeros(2)), GAMMA + 1e6 * THETA)


def test_vectors_of_tables_that_are_cut_by_rows_take_longer_to_land(hand_made: ComputeModel) -> None:
    workload = Workload(batch_size=100, links=network(2), wire=WireOptions(vectors="fp16"))
    costs = TableCosts(SPECS, 2, workload, hand_made)
    whole, half = Piece("a", (0, 1000), (0, 16)), Piece("a", (0, 500), (0, 16))
    assert costs.landing(whole) == pytest.approx(LANDING_SECONDS_PER_BYTE * 2 * 4 * 100 * 16)
    filled = 100 * (1 - 0.5**3)
    per_row = LANDING_SECONDS_PER_BYTE * 4 * 16 + LANDING_SECONDS_PER_ROW
    assert costs.landing(half) == pytest.approx(2 * filled * per_row)
    assert TableCosts(SPECS, 1, Workload(), hand_made).landing(whole) == 0


def test_ranks_that_share_cores_wait_for_each_other(hand_made: ComputeModel) -> None:
    plan = Plan((Shard("a", 0, (0, 1000), (0, 16)), Shard("b", 1, (0, 500), (0, 8))))
    own, shared = (
        TableCosts(SPECS, 4, Workload(ranks_per_core=share), hand_made).of_plan(plan) for share in (1.0, 2.0)
    )
    a, b = own.compute[:2]
    np.testing.assert_allclose(shared.compute[:2], [max(a, (a + b) / 2), min(2 * b, max(b, (a + b) / 2))])
    np.testing.assert_array_equal(shared.compute[2:], 0)
    assert shared.landing == 2 * own.landing

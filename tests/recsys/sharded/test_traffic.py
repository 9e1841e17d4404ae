"""windrow.recsys.sharded.traffic: what is expected is what the collections send and look up, to the byte."""

import numpy as np
import pytest
import torch

from windrow.comm.loopback import Loopback
from windrow.comm.meter import Meter
from windrow.partition.tables.plan import Copies, Plan, Replica, Shard
from windrow.recsys.batches.deduplication.ikjt import InverseKeyedJaggedTensor
from windrow.recsys.sharded.pooled import EmbeddingBagCollection
from windrow.recsys.sharded.sequences import EmbeddingCollection
from windrow.recsys.sharded.traffic import FeatureLoad, expected_traffic
from windrow.recsys.tables.options import EmbeddingBagConfig, EmbeddingConfig

ROWS, DIM = 30, 8
FEATURES = {"item": ["item", "history"], "user": ["user"], "day": ["day"]}
"""Features of each table; item and user have one id in each sample."""

HALVES = ((0, ROWS // 2), (ROWS // 2, ROWS))
PLANS = {
    "table": [Shard("item", 0, (0, ROWS), (0, DIM)), Shard("user", 1, (0, ROWS), (0, DIM))],
    "row": [Shard(table, rank, HALVES[rank], (0, DIM)) for table in ("item", "user") for rank in (0, 1)],
    "column": [
        Shard(table, rank, (0, ROWS), (4 * rank, 4 * rank + 4)) for table in ("item", "user") for rank in (0, 1)
    ],
}
REPLICAS = {"hot": [Replica(table, (0, 5)) for table in ("item", "user")]}
COPIED = (9, 2, 4)
COPIES = {"copies": tuple(Copies(table, COPIED) for table in ("item", "user"))}
PLANS["copies"] = PLANS["row"]
PLANS["hot"] = [Shard(table, rank, (5, ROWS), (0, DIM)) for rank, table in enumerate(("item", "user"))]
STAGES = ("counts", "ids", "vectors", "gradients")


def plan_of(kind: str, size: int) -> Plan:
    day = Replica("day", (0, ROWS))
    if size == 1:
        return Plan(tuple(Shard(table, 0, (0, ROWS), (0, DIM)) for table in ("item", "user")), (day,))
    return Plan(tuple(PLANS[kind]), (*REPLICAS.get(kind, []), day), copies=COPIES.get(kind, ()))


def lists() -> dict[str, list[list[int]]]:
    draw = np.random.default_rng(0)
    # Some lists of history have several ids in either half.
    once = {"item": 1, "user": 1, "history": 4}
    return {
        name: [draw.integers(0, ROWS, once.get(name, draw.integers(0, 5))).tolist() for _ in range(6)]
        for name in ("item", "user", "history", "day")
    }


@pytest.mark.parametrize("kind", list(PLANS))
@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("groups", [(), (("history", "user"),), (("day",), ("history", "item"))], ids=str)
@pytest.mark.parametrize("pooled", [True, False])
def test_what_is_expected_is_what_is_measured(jagged_of, kind, size, groups, pooled):
    plain = lists()
    grouped = {name for group in groups for name in group}
    # Each distinct row of a group belongs to two samples.
    kept = {name: rows[:3] if name in grouped else rows for name, rows in plain.items()}
    inverse = torch.arange(3).repeat(2)
    config = EmbeddingBagConfig if pooled else EmbeddingConfig
    tables = [
        config(name=name, num_embeddings=ROWS, embedding_dim=DIM, feature_names=features)
        for name, features in FEATURES.items()
    ]

    def body(world):
        world.meter = Meter()
        make = EmbeddingBagCollection if pooled else EmbeddingCollection
        collection = make(tables, world=world, plan=plan_of(kind, size), groups=groups)
        rest = jagged_of({name: rows for name, rows in kept.items() if name not in grouped})
        once = tuple(
            InverseKeyedJaggedTensor(jagged_of({name: kept[name] for name in group}), inverse) for group in groups
        )
        found = collection(rest, once)
        values = [found.values()] if pooled else [one.values() for one in found.values()]
        sum(one.sum() for one in values).backward()
        table = world.meter.table()
        sent = {
            stage: sum(amount.bytes_sent for (name, _), amount in table.items() if name.endswith(f": {stage}"))
            for stage in STAGES
        }
        rows = world.meter.found()
        return sent, rows.local + rows.remote, collection.layout, collection.form

    measured = Loopback.run(size, body)
    _, _, layout, form = measured[0]

    copied = {row: ROWS + place for place, row in enumerate(COPIED)} if kind == "copies" and size > 1 else {}

    def shares(feature: str, rows: tuple[int, int]) -> tuple[float, float]:
        numbers = {} if feature == "day" else copied
        named = [[rows[0] <= numbers.get(one, one) < rows[1] for one in of_row] for of_row in kept[feature]]
        return sum(map(sum, named)) / sum(map(len, named)), sum(map(any, named)) / len(named)

    loads = {name: FeatureLoad(len(rows), sum(map(len, rows)), name in ("item", "user")) for name, rows in kept.items()}
    expected = expected_traffic(layout, form, loads, shares)
    totals = {stage: sum(sent[stage] for sent, _, _, _ in measured) for stage in STAGES}
    assert expected.id_bytes == pytest.approx(totals["counts"] + totals["ids"])
    assert expected.forward_bytes == pytest.approx(totals["vectors"])
    assert expected.backward_bytes == pytest.approx(totals["gradients"])
    assert expected.lookups == pytest.approx(sum(rows for _, rows, _, _ in measured))
    assert (expected.forward_bytes > 0) == (size > 1)

"""Small collections, batches and plans, and the training that every plan must equal."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor

from windrow.partition.tables.plan import Copies, Plan, Replica, Shard
from windrow.recsys.tables.options import EmbeddingBagConfig, EmbeddingConfig, PoolingType

TABLES = [
    EmbeddingBagConfig(name="user", num_embeddings=11, embedding_dim=8, feature_names=["user"]),
    EmbeddingBagConfig(name="item", num_embeddings=37, embedding_dim=10, feature_names=["item", "history"]),
    EmbeddingBagConfig(
        name="tag", num_embeddings=23, embedding_dim=8, feature_names=["tag", "item"], pooling=PoolingType.MEAN
    ),
    EmbeddingBagConfig(name="tiny", num_embeddings=2, embedding_dim=4, feature_names=["flag"]),
]
SUMS = [replace(table, pooling=PoolingType.SUM) for table in TABLES]
EQUAL_DIMS = [
    EmbeddingConfig(name=t.name, num_embeddings=t.num_embeddings, embedding_dim=11, feature_names=t.feature_names)
    for t in TABLES
]
OWN_FEATURES = [replace(table, feature_names=[f for f in table.feature_names if f != "item"]) for table in TABLES]
FEATURES = ["history", "flag", "user", "item", "tag"]
LIMITS = {"user": 11, "item": 23, "history": 37, "tag": 23, "flag": 2}
ONE_ID = {"user", "flag"}


def cut_rows(table, size):
    bounds = [table.num_embeddings * part // size for part in range(size + 1)]
    return [
        Shard(table.name, rank, (bounds[rank], bounds[rank + 1]), (0, table.embedding_dim))
        for rank in range(size)
        if bounds[rank] < bounds[rank + 1]
    ]


def cut_often(table, size):
    return [
        Shard(table.name, first % size, (first, min(first + 2, table.num_embeddings)), (0, table.embedding_dim))
        for first in range(0, table.num_embeddings, 2)
    ]


def cut_columns(table, size):
    columns = list(range(0, table.embedding_dim, 4))
    return [
        Shard(table.name, (n + 1) % size, (0, table.num_embeddings), (column, min(column + 4, table.embedding_dim)))
        for n, column in enumerate(columns)
    ]


def cut_grid(table, size):
    middle, edge = table.num_embeddings // 2, 4
    last = size - 1
    if table.embedding_dim == edge:
        return cut_rows(table, size)
    return [
        Shard(table.name, last, (0, middle), (0, edge)),
        Shard(table.name, 0, (0, middle), (edge, table.embedding_dim)),
        Shard(table.name, last // 2, (middle, table.num_embeddings), (0, table.embedding_dim)),
    ]


def whole(table, rank):
    return [Shard(table.name, rank, (0, table.num_embeddings), (0, table.embedding_dim))]


def copy(table, rows=None):
    return Replica(table.name, rows or (0, table.num_embeddings))


def partly_replicated(size, tables):
    """Of each table some rows on every rank; the others whole, in columns, or on two ranks."""
    user, item, tag, tiny = tables
    shards = [
        Shard(user.name, 0, (4, 11), (0, user.embedding_dim)),
        Shard(item.name, size - 1, (0, 10), (0, 4)),
        Shard(item.name, 0, (0, 10), (4, item.embedding_dim)),
        Shard(item.name, size // 2, (20, 37), (0, item.embedding_dim)),
        Shard(tag.name, size - 1, (5, 14), (0, tag.embedding_dim)),
        Shard(tag.name, 0, (14, 20), (0, tag.embedding_dim)),
    ]
    copies = [copy(user, (0, 4)), copy(item, (10, 20)), copy(tag, (0, 5)), copy(tag, (20, 23)), copy(tiny)]
    return Plan(tuple(shards), tuple(copies))


def with_copies(plan, tables):
    """Some rows, in no order, of each table whose features look into no other."""
    found = []
    for table in tables:
        others = {feature for other in tables if other is not table for feature in other.feature_names}
        ranges = [replica.rows for replica in plan.replicas_of(table.name)]
        rows = [row for row in (7, 0, 1, 10) if row < table.num_embeddings]
        rows = [row for row in rows if not any(start <= row < stop for start, stop in ranges)]
        if rows and not others & set(table.feature_names):
            found.append(Copies(table.name, tuple(rows)))
    return replace(plan, copies=tuple(found))


def make_plan(kind: str, size: int, tables=TABLES) -> Plan:
    plan = plan_of_ranges(kind.removeprefix("copies, "), size, tables)
    return with_copies(plan, tables) if kind.startswith("copies, ") else plan


def plan_of_ranges(kind, size, tables):
    if kind == "table":
        return Plan(tuple(s for n, t in enumerate(tables) for s in whole(t, (n + 1) % size)))
    if kind == "one rank":
        return Plan(tuple(s for t in tables for s in whole(t, size - 1)))
    if kind == "replicated":
        return Plan((), tuple(copy(t) for t in tables))
    if kind == "rows on every rank":
        return partly_replicated(size, tables)
    if kind == "mixed":
        user, item, tag, tiny = tables
        return Plan((*whole(user, size - 1), *cut_grid(item, size), *cut_rows(tag, size)), (copy(tiny),))
    cut = {"row": cut_rows, "many pieces": cut_often, "column": cut_columns, "grid": cut_grid}[kind]
    return Plan(tuple(s for t in tables for s in cut(t, size)))


def draw(seed: int, num_samples: int, *, empty: bool = False) -> dict[str, list[list[int]]]:
    """feature -> ids of each sample."""
    generator = np.random.default_rng(seed)
    drawn = {}
    for feature in FEATURES:
        lengths = np.ones(num_samples, int) if feature in ONE_ID else generator.integers(0, 4, num_samples)
        lengths = lengths * (not empty)
        drawn[feature] = [generator.integers(0, LIMITS[feature], n).tolist() for n in lengths]
    return drawn


def weight_of(feature: str, ids: list[int]) -> list[float]:
    return [0.25 * (1 + (i + len(feature)) % 7) for i in ids]


def jagged(drawn: dict[str, list[list[int]]], *, weighted: bool = False, num_samples: int | None = None):
    from windrow.recsys.batches.jagged import keyed

    bags = [bag for feature in drawn for bag in drawn[feature]]
    weights = [w for feature in drawn for bag in drawn[feature] for w in weight_of(feature, bag)]
    return keyed(
        list(drawn),
        torch.tensor([i for bag in bags for i in bag], dtype=torch.int64),
        torch.tensor([len(bag) for bag in bags], dtype=torch.int64),
        torch.tensor(weights, dtype=torch.float32) if weighted else None,
        num_samples=len(next(iter(drawn.values()))) if num_samples is None else num_samples,
    )


def repeating(seed: int, num_samples: int, *, empty: bool = False) -> dict[str, list[list[int]]]:
    """As `draw`, with few distinct rows of each feature, each feature's choice its own."""
    few = draw(seed, 3, empty=empty)
    generator = np.random.default_rng(seed + 1)
    return {f: [bags[n] for n in generator.integers(0, 3, num_samples)] for f, bags in few.items()}


def deduplicated(drawn: dict[str, list[list[int]]], groups, *, weighted: bool = False):
    """What is in no group, a list for each sample, and the groups with each distinct row once."""
    from windrow.recsys.batches.deduplication.ikjt import InverseKeyedJaggedTensor

    grouped = {feature for group in groups for feature in group}
    num_samples = len(next(iter(drawn.values())))
    found = []
    for group in groups:
        rows = [tuple(tuple(drawn[feature][n]) for feature in group) for n in range(num_samples)]
        distinct = list(dict.fromkeys(rows))
        lists = {feature: [list(row[n]) for row in distinct] for n, feature in enumerate(group)}
        inverse = torch.tensor([distinct.index(row) for row in rows], dtype=torch.int64)
        found.append(InverseKeyedJaggedTensor(jagged(lists, weighted=weighted), inverse))
    plain = {feature: bags for feature, bags in drawn.items() if feature not in grouped}
    return jagged(plain, weighted=weighted, num_samples=num_samples), tuple(found)


def reference_pooled(tables, weights: dict[str, Tensor], drawn, *, weighted=False) -> Tensor:
    """Bag after bag."""
    columns = []
    for table in tables:
        for feature in table.feature_names:
            rows = []
            for bag in drawn[feature]:
                looked_up = weights[table.name][torch.tensor(bag, dtype=torch.int64)]
                if weighted:
                    looked_up = looked_up * torch.tensor(weight_of(feature, bag)).unsqueeze(1)
                total = looked_up.sum(0)
                rows.append(total / max(len(bag), 1) if table.pooling is PoolingType.MEAN else total)
            columns.append(torch.stack(rows) if rows else torch.zeros(0, table.embedding_dim))
    return torch.cat(columns, dim=1)


def assembled(parts) -> dict[str, Tensor]:
    """Whole tables from what every rank holds."""
    found: dict[str, Tensor] = {}
    everything = [part for rank in parts for part in rank]
    dims = {table.name: 0 for table, _ in everything}
    for table, _ in everything:
        dims[table.name] = max(dims[table.name], table.columns[1])
    for table, weight in everything:
        config = next(t for t in TABLES if t.name == table.name)
        target = found.setdefault(table.name, torch.full((config.num_embeddings, dims[table.name]), float("nan")))
        target[table.rows[0] : table.rows[1], table.columns[0] : table.columns[1]] = weight
    assert not any(t.isnan().any() for t in found.values())
    return found


def local(collection) -> list:
    return [
        (part.piece, part.tensor.clone())
        for batch in collection.local_tables()
        for part in batch.state()
        if part.name == "weight"
    ]


@pytest.fixture(scope="session")
def small() -> SimpleNamespace:
    """Everything above."""
    return SimpleNamespace(
        tables=TABLES,
        sums=SUMS,
        equal_dims=EQUAL_DIMS,
        own_features=OWN_FEATURES,
        features=FEATURES,
        make_plan=make_plan,
        draw=draw,
        jagged=jagged,
        reference_pooled=reference_pooled,
        assembled=assembled,
        local=local,
        weight_of=weight_of,
        deduplicated=deduplicated,
        repeating=repeating,
    )

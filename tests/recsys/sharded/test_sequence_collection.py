"""Rows of single ids under any plan against indexing whole tables in one process."""

import pytest
import torch

from windrow.comm.errors import RecipeError
from windrow.comm.gradients import GradientReducer
from windrow.recsys.sharded.sequences import EmbeddingCollection
from windrow.recsys.tables.options import EmbeddingConfig, TableOptions

KINDS = ["table", "row", "column", "grid", "replicated", "mixed", "rows on every rank"]
STEPS = 3
DIM = 8


def draw_for(small, step, rank, groups=()):
    samples = [5, 0, 3, 7][(rank + step) % 4]
    draw = small.repeating if groups else small.draw
    return draw(10 * step + rank, samples, empty=step == STEPS - 1 and rank > 0)


def upstream(rows: torch.Tensor, rank: int) -> torch.Tensor:
    return torch.linspace(-1, 1, rows.numel()).view_as(rows) * (rank + 1)


def train(world, small, kind, groups):
    options = TableOptions(optimizer="sgd", learning_rate=0.5)
    collection = EmbeddingCollection(
        small.equal_dims,
        world=world,
        plan=small.make_plan(kind, world.size, small.equal_dims),
        groups=groups,
        optimizer=options,
    )
    before = small.local(collection)
    reducer = GradientReducer(world, collection.replicated_parameters())
    found = []
    for step in range(STEPS):
        drawn = draw_for(small, step, world.rank, groups)
        reducer.start()
        result = collection(*small.deduplicated(drawn, groups))
        found.append({name: rows.values().detach().clone() for name, rows in result.items()})
        assert result["history"].lengths().tolist() == [len(bag) for bag in drawn["history"]]
        loss = sum((r.values().tanh() * upstream(r.values(), world.rank)).sum() for r in result.values())
        loss.backward()
        reducer.finish()
        collection.step()
    return before, found, small.local(collection)


GROUPS = [["history"], ["tag", "item"]]


@pytest.mark.parametrize(
    ("kind", "groups"),
    [*((kind, ()) for kind in KINDS), *((kind, GROUPS) for kind in ("row", "grid", "mixed"))],
)
def test_rows_and_updates_equal_those_of_one_process(spmd, small, kind, groups):
    results = spmd(lambda world: train(world, small, kind, groups))
    weights = {n: t.clone().requires_grad_() for n, t in small.assembled(r[0] for r in results).items()}
    for step in range(STEPS):
        loss = sum(weight.sum() for weight in weights.values()) * 0
        for rank, (_, found, _) in enumerate(results):
            drawn = draw_for(small, step, rank, groups)
            for name, rows in found[step].items():
                feature, _, table = name.partition("@")
                table = table or next(t.name for t in small.equal_dims if feature in t.feature_names)
                expected = weights[table][[i for bag in drawn[feature] for i in bag]]
                torch.testing.assert_close(rows, expected.detach(), rtol=1e-5, atol=1e-6)
                loss = loss + (expected.tanh() * upstream(expected, rank)).sum()
        loss.backward()
        with torch.no_grad():
            for weight in weights.values():
                weight.sub_(0.5 * weight.grad)
                weight.grad = None
    after = small.assembled(r[2] for r in results)
    for name, weight in weights.items():
        torch.testing.assert_close(after[name], weight.detach(), rtol=1e-5, atol=2e-6)


def test_the_same_as_torchrec(small):
    from torchrec.modules.embedding_configs import EmbeddingConfig as TheirConfig
    from torchrec.modules.embedding_modules import EmbeddingCollection as Theirs

    with torch.random.fork_rng(devices=[]):
        theirs = Theirs([
            TheirConfig(
                name=t.name,
                num_embeddings=t.num_embeddings,
                embedding_dim=t.embedding_dim,
                feature_names=list(t.feature_names),
            )
            for t in small.equal_dims
        ])  # fmt: skip
    ours = EmbeddingCollection(theirs.embedding_configs())
    with torch.no_grad():
        for piece, weight in small.local(ours):
            theirs.embeddings[piece.name].weight.copy_(weight)
    batch = small.jagged(small.draw(4, 9))
    expected, found = theirs(batch), ours(batch)
    assert list(found) == list(expected)
    for name, rows in expected.items():
        assert torch.equal(found[name].values(), rows.values())
        assert torch.equal(found[name].lengths(), rows.lengths())
        assert torch.equal(found[name].offsets(), rows.offsets())


def test_one_dim():
    with pytest.raises(RecipeError, match=r"got \[4, 8\]"):
        EmbeddingCollection([
            EmbeddingConfig(name="a", num_embeddings=3, embedding_dim=4),
            EmbeddingConfig(name="b", num_embeddings=3, embedding_dim=8),
        ])  # fmt: skip

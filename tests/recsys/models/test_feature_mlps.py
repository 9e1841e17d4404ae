"""A net for each feature: its formula, and how often it runs."""

import torch

from windrow.recsys.batches.deduplication.options import DeduplicationOptions
from windrow.recsys.batches.jagged import Deduplicated, Jagged
from windrow.recsys.embeddings import Embeddings, PooledRows
from windrow.recsys.models.click_models import DCN
from windrow.recsys.models.towers import FeatureMLPModel

DIMS = {"user": 3, "item": 4}


def make(deduplication: DeduplicationOptions | None = None) -> FeatureMLPModel:
    generator = torch.Generator().manual_seed(0)
    inner = DCN(num_dense=1, pooled_dims=DIMS, deep=(5,), generator=generator)
    return FeatureMLPModel(inner, DIMS, hidden=(6, 2), deduplication=deduplication, generator=generator)


def test_formula() -> None:
    model = make()
    generator = torch.Generator().manual_seed(1)
    dense, user, item = (torch.randn(5, columns, generator=generator) for columns in (1, 3, 4))
    changed = [
        output(mlp(part)) for output, mlp, part in zip(model.outputs, model.mlps, (user, item), strict=True)
    ]
    expected = model.model(dense, Embeddings.of(torch.cat(changed, 1), DIMS))
    torch.testing.assert_close(model(dense, Embeddings.of(torch.cat([user, item], 1), DIMS)), expected)
    # Groups may hold features in another order.
    turned = Embeddings.of(torch.cat([item, user], 1), {"item": 4, "user": 3})
    torch.testing.assert_close(model(dense, Embeddings(turned.groups, ("user", "item"))), expected)


def test_runs_on_the_rows_that_were_looked_up() -> None:
    rows, inverse = torch.ones(2, 7), torch.tensor([0, 1, 1, 0, 1])
    embeddings = Embeddings([PooledRows(("user", "item"), (3, 4), rows, inverse)], ("user", "item"))
    for compute, expected in ((True, [2, 2]), (False, [5, 5])):
        model, seen = make(DeduplicationOptions(compute=compute)), []
        for mlp in model.mlps:
            mlp.register_forward_hook(lambda _, given, result: seen.append(len(result)))  # noqa: B023
        model(torch.ones(5, 1), embeddings)
        assert seen == expected


def test_sequences_reach_the_model_inside() -> None:
    model, seen = make(), []
    model.model.finish = lambda begun, embeddings, context: seen.append(embeddings) or begun  # type: ignore[method-assign]
    sequences = {"seen": Deduplicated(Jagged(torch.zeros(3, 4), torch.tensor([0, 1, 3])))}
    given = Embeddings.of(torch.zeros(2, 7), DIMS)
    model(torch.zeros(2, 1), Embeddings(given.groups, given.order, sequences))
    assert seen[0].sequences == sequences

"""A collection under any plan against bag after bag in one process."""

import pytest
import torch

from windrow.comm.gradients import GradientReducer
from windrow.recsys.sharded.bag_collection import EmbeddingBagCollection
from windrow.recsys.tables.options import TableOptions

KINDS = ["table", "one rank", "row", "column", "grid", "replicated", "mixed"]
STEPS = 3
SAMPLES = [5, 0, 3, 7]


def draw_for(small, step, rank):
    """Uneven numbers of samples; in the last step only the first rank has ids."""
    return small.draw(10 * step + rank, SAMPLES[(rank + step) % 4], empty=step == STEPS - 1 and rank > 0)


def upstream(num_samples: int, width: int, rank: int) -> torch.Tensor:
    return torch.linspace(-1, 1, num_samples * width).view(num_samples, width) * (rank + 1)


def train(world, small, kind, *, tables, weighted=False, optimizer="sgd"):
    """STEPS steps; returns pooled values of each, and the tables."""
    options = TableOptions(optimizer=optimizer, learning_rate=0.5)
    collection = EmbeddingBagCollection(
        tables, weighted, world=world, plan=small.make_plan(kind, world.size), optimizer=options, seed=3
    )
    before = small.local(collection)
    reducer = GradientReducer(world, collection.replicated_parameters())
    pooled = []
    for step in range(STEPS):
        drawn = draw_for(small, step, world.rank)
        reducer.start()
        result = collection(small.jagged(drawn, weighted=weighted))
        assert result.keys() == collection.embedding_names
        values = result.values()
        pooled.append(values.detach().clone())
        (values.tanh() * upstream(*values.shape, world.rank)).sum().backward()
        reducer.finish()
        collection.step()
    return before, pooled, small.local(collection)


def check_against_reference(small, results, *, tables, weighted=False):
    size = len(results)
    weights = {n: t.clone().requires_grad_() for n, t in small.assembled(r[0] for r in results).items()}
    for step in range(STEPS):
        loss = sum(weight.sum() for weight in weights.values()) * 0
        for rank in range(size):
            drawn = draw_for(small, step, rank)
            expected = small.reference_pooled(tables, weights, drawn, weighted=weighted)
            torch.testing.assert_close(results[rank][1][step], expected.detach(), rtol=1e-5, atol=1e-6)
            loss = loss + (expected.tanh() * upstream(*expected.shape, rank)).sum()
        loss.backward()
        with torch.no_grad():
            for weight in weights.values():
                weight -= 0.5 * weight.grad
                weight.grad = None
    after = small.assembled(r[2] for r in results)
    for name, weight in weights.items():
        torch.testing.assert_close(after[name], weight.detach(), rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_values_and_updates_equal_those_of_one_process(spmd, small, kind):
    results = spmd(lambda world: train(world, small, kind, tables=small.tables))
    check_against_reference(small, results, tables=small.tables)


@pytest.mark.parametrize("kind", ["table", "mixed"])
def test_weights_of_ids(spmd, small, kind):
    results = spmd(lambda world: train(world, small, kind, tables=small.sums, weighted=True))
    check_against_reference(small, results, tables=small.sums, weighted=True)

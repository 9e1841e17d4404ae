"""Metrics over all ranks against one process that sees everything."""

import pytest
import torch

from windrow.caching.cached_store import CachedStore
from windrow.comm.errors import DataError, RecipeError
from windrow.comm.loopback import Loopback
from windrow.gnn.evaluation import EvaluationOptions, Evaluator, metrics_of
from windrow.gnn.message_passing import Block
from windrow.gnn.metrics import evaluate_predictions
from windrow.gnn.models import ModelOptions, build_model
from windrow.gnn.partitioned import PartitionedGraph
from windrow.gnn.pipeline import PipelineOptions
from windrow.gnn.synthetic import community_graph
from windrow.partition.book import PartitionBook

GRAPH = {"average_degree": 6, "num_features": 6}


def evaluate(world, graph, options, outputs, *, share_store=False, depth=3):
    assignment = torch.arange(graph.num_vertices).numpy() % world.size
    book = PartitionBook.from_assignment(assignment, world.size)
    part = PartitionedGraph.from_graph(graph, book, world.rank)
    start, stop = part.own_range
    others = torch.cat([torch.arange(start), torch.arange(stop, graph.num_vertices)])
    store = CachedStore(world, part.offsets, part.features, cached_ids=others[::3]) if share_store else None
    pipeline = PipelineOptions(depth=depth)
    metrics = metrics_of(options, part)
    evaluator = Evaluator(
        world, part, make_model(outputs), metrics, options, fanouts=(3, 2), seed=1, pipeline=pipeline, store=store
    )
    first = evaluator.evaluate()
    assert evaluator.evaluate() == first
    assert {tuple(values) for values in first.values()} == {tuple(metrics)}
    return {split: values[next(iter(metrics))] for split, values in first.items()}


def make_model(outputs):
    return build_model(ModelOptions(hidden=8, num_layers=2), in_features=6, out_features=outputs, seed=2)


@pytest.mark.parametrize(
    ("task", "classes", "outputs", "metric"),
    [
        ("single-label", 4, 4, "accuracy"),
        ("single-label", 4, 4, "macro_f1"),
        ("binary", 2, 1, "roc_auc"),
        ("multi-label", 3, 3, "roc_auc"),
        ("regression", 4, 1, "rmse"),
    ],
)
def test_exact_evaluation_equals_one_process(spmd, task, classes, outputs, metric):
    graph = community_graph(150, classes, seed=3, task=task, **GRAPH)
    whole = Block.whole(graph.indptr, graph.indices)
    with torch.no_grad():
        logits = make_model(outputs)([whole, whole], graph.features)
    expected = {
        split: evaluate_predictions(metric, task, logits[ids], graph.labels[ids])
        for split, ids in (("validation", graph.validation_ids), ("test", graph.test_ids))
    }
    for values in spmd(lambda world: evaluate(world, graph, EvaluationOptions(metric=metric), outputs)):
        assert values == pytest.approx(expected, abs=1e-6)


def test_sampling_all_neighbours_is_exact_and_few_does_not_depend_on_the_ranks():
    graph = community_graph(150, 4, seed=3, **GRAPH)
    single = Loopback.single()
    exact = evaluate(single, graph, EvaluationOptions(), 4)
    everything = EvaluationOptions(method="sampled", fanouts=(-1, -1), batch_size=16)
    for values in Loopback.run(2, lambda world: evaluate(world, graph, everything, 4)):
        assert values == pytest.approx(exact, abs=1e-6)
    few = EvaluationOptions(method="sampled", batch_size=16)
    for values in Loopback.run(3, lambda world: evaluate(world, graph, few, 4)):
        assert values == pytest.approx(evaluate(single, graph, few, 4), abs=1e-6)


def test_neither_the_pipeline_nor_the_cache_of_training_changes_a_figure():
    graph = community_graph(150, 4, seed=3, **GRAPH)
    options = EvaluationOptions(method="sampled", batch_size=16)

    def body(world):
        plain = evaluate(world, graph, options, 4, depth=0)
        return plain, evaluate(world, graph, options, 4, share_store=True, depth=5)

    for plain, piped in Loopback.run(3, body):
        assert plain == piped


def test_labels_that_cannot_be_scored_are_refused_before_training():
    graph = community_graph(60, 2, seed=3, task="binary", **GRAPH)
    graph.labels[graph.test_ids] = 1
    with pytest.raises(DataError, match="ROC-AUC has no meaning on"):
        evaluate(Loopback.single(), graph, EvaluationOptions(), 1)
    with pytest.raises(RecipeError, match="metric = 'mae' is none of task 'binary': choose from roc_auc, accuracy"):
        evaluate(Loopback.single(), graph, EvaluationOptions(metric="mae"), 1)

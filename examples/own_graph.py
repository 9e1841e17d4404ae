"""Train on a graph that is already in memory, and get the predictions back in its own order.

    python -P examples/own_graph.py
    mpirun -n 2 python -P examples/own_graph.py --epochs 5

The graph here is a ring of villages: each vertex knows most of its own village and a few of the next one.
Features are noise with a weak hint of the village, so that a model has to listen to the neighbours.
"""

import argparse

import torch

from windrow.comm.connect import connect
from windrow.gnn import (
    EvaluationOptions,
    Evaluator,
    Graph,
    MinibatchTrainer,
    ModelOptions,
    PartitionedGraph,
    SamplerOptions,
    SplitOptions,
    TrainingOptions,
    assemble_graph,
    build_model,
    gather_predictions,
    infer_exactly,
)
from windrow.partition import PartitionBook, PartitionOptions, partition_graph

VILLAGES, PEOPLE = 5, 200


def make_graph() -> Graph:
    """Edges, features and labels as tensors; the same on every rank, because the generator's seed is."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(VILLAGES * PEOPLE) % VILLAGES
    sources = torch.randint(VILLAGES * PEOPLE, (8000,), generator=generator)
    steps = VILLAGES * torch.randint(PEOPLE, (8000,), generator=generator)
    strangers = torch.rand(8000, generator=generator) < 0.2  # one vertex further is one village further
    destinations = (sources + steps + strangers) % (VILLAGES * PEOPLE)
    hints = torch.eye(VILLAGES).repeat(1, 4)[labels]
    features = 0.5 * hints + torch.randn(len(labels), 4 * VILLAGES, generator=generator)
    split = SplitOptions(kind="fractions", train_fraction=0.3, validation_fraction=0.2)
    return assemble_graph(
        sources, destinations, len(labels), features=features, labels=labels, random_split_options=split
    )


def main(epochs: int) -> None:
    """Every rank runs this."""
    with connect() as world:
        graph = make_graph()
        csc, ids = (graph.indptr.numpy(), graph.indices.numpy()), graph.train_ids.numpy()
        parts = partition_graph(*csc, PartitionOptions(num_parts=world.size, method="fennel"), train_ids=ids)
        book = PartitionBook.from_assignment(parts, world.size)
        mine = PartitionedGraph.from_graph(graph, book, world.rank)
        sampler = SamplerOptions(fanouts=(10, 5))
        shape = ModelOptions(hidden=32, num_layers=2)
        model = build_model(shape, in_features=mine.features.shape[1], out_features=mine.outputs, seed=1)
        options = TrainingOptions(epochs=epochs, batch_size=64, learning_rate=0.01)
        trainer = MinibatchTrainer(world, mine, model, sampler_options=sampler, options=options, seed=1)
        evaluator = Evaluator(world, mine, EvaluationOptions(), fanouts=sampler.fanouts, seed=1)
        for epoch in range(epochs):
            loss = trainer.train_epoch(epoch)
            accuracy = evaluator.evaluate(model)  # by split
            if world.rank == 0:
                print(f"epoch {epoch + 1}: loss {loss:.4f}, test accuracy {accuracy['test']:.3f}")
        trainer.close()
        predicted = gather_predictions(world, mine, infer_exactly(world, mine, model)).argmax(1)
        if world.rank == 0:
            print(f"vertices 0 to 9 are said to be in villages {predicted[:10].tolist()}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    main(parser.parse_args().epochs)

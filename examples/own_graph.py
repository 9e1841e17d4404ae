"""Train a model of one's own on a graph that is already in memory, and get the predictions back in its own order.

    python -P examples/own_graph.py
    mpirun -n 2 python -P examples/own_graph.py --epochs 5

The graph here is a ring of villages: each vertex knows most of its own village and a few of the next one.
Features are noise with a weak hint of the village.
"""

import argparse
from collections.abc import Sequence

import torch
from torch import Tensor, nn

import windrow as wr
from windrow import gnn
from windrow.gnn.message_passing import Block

VILLAGES, PEOPLE = 5, 200


def make_graph() -> gnn.Graph:
    """Edges, features and labels as tensors; the same on every rank."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(VILLAGES * PEOPLE) % VILLAGES
    sources = torch.randint(VILLAGES * PEOPLE, (8000,), generator=generator)
    steps = VILLAGES * torch.randint(PEOPLE, (8000,), generator=generator)
    strangers = torch.rand(8000, generator=generator) < 0.2  # one vertex further is one village further
    destinations = (sources + steps + strangers) % (VILLAGES * PEOPLE)
    hints = torch.eye(VILLAGES).repeat(1, 4)[labels]
    features = 0.5 * hints + torch.randn(len(labels), 4 * VILLAGES, generator=generator)
    split = gnn.SplitOptions(kind="fractions", train_fraction=0.3, validation_fraction=0.2)
    return gnn.assemble_graph(
        sources, destinations, len(labels), features=features, labels=labels, random_split_options=split
    )


class MeanOfNeighbours(nn.Module):
    """Plain torch: each layer adds up a vertex's own row and the mean of its neighbours' rows."""

    def __init__(self, num_features: int, hidden: int, num_outputs: int) -> None:
        super().__init__()
        self.own = nn.ModuleList([nn.Linear(num_features, hidden), nn.Linear(hidden, num_outputs)])
        self.others = nn.ModuleList([nn.Linear(num_features, hidden), nn.Linear(hidden, num_outputs)])

    def forward(self, blocks: Sequence[Block], x: Tensor) -> Tensor:
        """Outputs of the last block's destinations, from the rows of the first block's sources."""
        for block, own, others in zip(blocks, self.own, self.others, strict=True):
            source, destination = block.edge_index
            total = x.new_zeros(block.num_dst, x.shape[1]).index_add(0, destination, x[source])
            x = own(x[: block.num_dst].relu()) + others(total.relu() / block.degrees.clamp(min=1).unsqueeze(1))
        return x


def accuracy(scores: Tensor, labels: Tensor) -> float:
    """Share of vertices whose village is found."""
    return float((scores.argmax(1) == labels).float().mean())


def main(epochs: int) -> None:
    """Every rank runs this."""
    torch.manual_seed(1)
    with wr.connect() as world:
        part = gnn.partition(make_graph(), world)
        task = gnn.NodeTask(part, fanouts=(10, 5), loss=nn.functional.cross_entropy, metrics={"accuracy": accuracy})
        model = MeanOfNeighbours(part.num_features, 32, part.num_outputs)
        with wr.Trainer(world, model, task, epochs=epochs, batch_size=64, learning_rate=0.01) as trainer:
            result = trainer.fit(name="villages")
            villages = trainer.predict().argmax(1)
        if world.rank == 0:
            print(f"test accuracy {result.test:.3f}; vertices 0 to 9 are said to be in {villages[:10].tolist()}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    main(parser.parse_args().epochs)

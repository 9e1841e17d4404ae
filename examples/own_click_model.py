"""A model and a loop of one's own on sharded embedding tables: TorchRec code that changed its imports.

    python -P examples/own_click_model.py
    mpirun -n 2 python -P examples/own_click_model.py --steps 50

The log is made up: who bought items of a group clicks on items of that group. Tables are split over the ranks by rows.
"""

import argparse

import torch
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from windrow.comm.connect import connect
from windrow.comm.gradients import GradientReducer
from windrow.partition.tables import plan_with_planner
from windrow.recsys import EmbeddingBagCollection, EmbeddingBagConfig, TableOptions, table_specs

USERS, ITEMS, GROUPS, BOUGHT, DIM, SAMPLES = 2000, 500, 5, 4, 16, 512
TABLES = [
    EmbeddingBagConfig(num_embeddings=USERS, embedding_dim=DIM, name="user", feature_names=["user"]),
    EmbeddingBagConfig(num_embeddings=ITEMS, embedding_dim=DIM, name="item", feature_names=["item", "past"]),
]


class DotModel(nn.Module):
    """A click is likely where the item fits the user and what they bought."""

    def __init__(self, bags: EmbeddingBagCollection) -> None:
        super().__init__()
        self.bags = bags
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, samples: KeyedJaggedTensor) -> Tensor:
        """Logits [B]."""
        user, item, past = self.bags(samples).to_dict().values()
        return torch.add(((user + past) * item).sum(1), self.bias)


def make_samples(step: int, rank: int) -> tuple[KeyedJaggedTensor, Tensor]:
    """Ids and labels of this rank in one step."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    user = torch.randint(USERS, (SAMPLES,), generator=generator)
    item = torch.randint(ITEMS, (SAMPLES,), generator=generator)
    taste = torch.randint(ITEMS // GROUPS, (SAMPLES, BOUGHT), generator=generator) * GROUPS
    group = torch.randint(GROUPS, (SAMPLES, 1), generator=generator)
    ids = KeyedJaggedTensor.from_lengths_sync(
        keys=["user", "item", "past"],
        values=torch.cat([user, item, (taste + group).flatten()]),
        lengths=torch.tensor([1, 1, BOUGHT]).repeat_interleave(SAMPLES),
    )
    return ids, (item % GROUPS == group[:, 0]).float()


def main(steps: int) -> None:
    """Every rank runs this."""
    with connect() as world:
        options = TableOptions(dim=DIM, optimizer="adagrad", learning_rate=0.1)
        plan = plan_with_planner("row_wise", table_specs(TABLES, options), world.size)
        model = DotModel(EmbeddingBagCollection(TABLES, world=world, plan=plan, optimizer=options))
        reducer = GradientReducer(world, [*model.bags.replicated_parameters(), model.bias])
        dense = torch.optim.Adam([model.bias], lr=0.1)
        for step in range(steps):
            samples, labels = make_samples(step, world.rank)
            reducer.start()
            loss = nn.functional.binary_cross_entropy_with_logits(model(samples), labels)
            (loss / world.size).backward()  # the rows of sharded tables are updated here
            reducer.finish()
            dense.step()
            model.bags.step()
            if world.rank == 0 and (step + 1) % 25 == 0:
                print(f"step {step + 1}: loss {loss.item():.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    main(parser.parse_args().steps)

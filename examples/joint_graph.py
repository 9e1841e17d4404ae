"""A click model and the graph of its log, learnt together on the same rows of users and items.

    windrow prepare examples/frappe.toml
    mpirun -n 2 python -P examples/joint_graph.py examples/frappe.toml --weight 0.1

Ids of two features that occur together in a clicked training sample are joined. With each sample comes such a pair: its
first id is to be nearer to the second one than to those of the minibatch's other pairs. Both change the same rows.
"""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

import windrow as wr
from windrow import recsys
from windrow.comm.random import hash_ids, stream_key
from windrow.comm.world import World
from windrow.launch.recommendation_recipe import load_recommendation_recipe

DIM, SAMPLES, EPOCHS, LINKED = 16, 1024, 3, ("linked_from", "linked_to")


class ReaderWithPairs(recsys.BatchReader):
    """Each sample has a pair besides, which depends on sample and epoch alone, not on the ranks."""

    pairs: np.ndarray

    @contextmanager
    def batches(self, epoch: int, first_step: int = 0) -> Iterator[Iterator[recsys.Batch]]:
        """Those of the reader."""
        with super().batches(epoch, first_step) as batches:
            yield (self._with_pairs(batch, stream_key(epoch)) for batch in batches)

    def _with_pairs(self, batch: recsys.Batch, key: int) -> recsys.Batch:
        drawn = hash_ids(key, batch.row_ids.numpy()) % np.uint64(self.pairs.shape[1])
        ids = torch.from_numpy(self.pairs[:, drawn.astype(np.int64)].flatten())
        values, lengths = batch.sparse.values(), batch.sparse.lengths()
        values, lengths = torch.cat([values, ids.to(values)]), torch.cat([lengths, lengths.new_ones(len(ids))])
        return replace(batch, sparse=KeyedJaggedTensor([*batch.sparse.keys(), *LINKED], values, lengths=lengths))


class JointModel(nn.Module):
    """Logits of clicks [B], and in training a score of each pair's first id with all second ones [B, B]."""

    def __init__(self, world: World, log: recsys.LogStore, link: list[str]) -> None:
        super().__init__()
        tables = log.tables(dim=DIM)
        self.clicked_by = [name for table in tables for name in table.feature_names]
        for feature, linked in zip(link, LINKED, strict=True):
            next(table for table in tables if feature in table.feature_names).feature_names.append(linked)
        options = recsys.TableOptions(dim=DIM, learning_rate=0.05, initial_scale=0.1)
        self.tables = recsys.EmbeddingBagCollection(tables, world=world, plan="greedy", optimizer=options)
        width = len(log.dense) + DIM * len(self.clicked_by)
        self.dense = nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, batch: recsys.Batch) -> Any:
        """Look both up at once."""
        pooled = self.tables(batch.sparse).to_dict()
        logits = self.dense(torch.cat([batch.dense, *(pooled[name] for name in self.clicked_by)], 1)).squeeze(1)
        return (logits, pooled[LINKED[0]] @ pooled[LINKED[1]].T) if self.training else logits


def main(recipe: Path, link: list[str], weight: float) -> None:
    """Every rank runs this."""
    log = recsys.LogStore.open(load_recommendation_recipe(recipe).store)
    found = recsys.co_occurrences(log, link)
    ReaderWithPairs.pairs = found.pairs - np.array([[start] for start, _ in found.vertices.values()])

    def loss(output: tuple[Tensor, Tensor], labels: Tensor) -> Tensor:
        clicks = nn.functional.binary_cross_entropy_with_logits(output[0], labels, reduction="none")
        return clicks + weight * nn.functional.cross_entropy(output[1], torch.arange(len(labels)), reduction="none")

    with wr.connect() as world:
        torch.manual_seed(0)  # equal weights on all ranks
        model = JointModel(world, log, link)
        of_rank: dict[str, Any] = {"rank": world.rank, "size": world.size, "batch_size": SAMPLES}
        measured = recsys.ClickEvaluator(world, model, {"test": ReaderWithPairs(log, "test", **of_rank)})
        task = recsys.RecommendationTask(ReaderWithPairs(log, "train", **of_rank), measured, loss=loss)
        with wr.Trainer(world, model, task, epochs=EPOCHS, batch_size=SAMPLES, learning_rate=0.003) as trainer:
            for epoch in range(EPOCHS):
                figure, auc = trainer.train_epoch(epoch), trainer.evaluate("test")["test"]["auc"]
                if world.rank == 0:
                    print(f"epoch {epoch + 1}: loss {figure:.4f}, test AUC {auc:.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("recipe", type=Path)
    parser.add_argument("--link", type=lambda text: text.split(","), default=["user", "item"], help="two features")
    parser.add_argument("--weight", type=float, default=0.1, help="of the graph's loss")
    main(**vars(parser.parse_args()))

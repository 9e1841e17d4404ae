"""Two tasks on a log that grows: every day starts from the tables of the day before; then scores, and a model to serve.

    python -P examples/daily_run.py --folder stores/daily
    mpirun -n 2 python -P examples/daily_run.py --folder stores/daily

The log is made up: what is clicked and what is bought depend on the kind of article and on the price. Tuesday's has
articles and customers that Monday's vocabularies lack.
"""

import argparse
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from pyarrow import parquet
from torch import Tensor, nn

import windrow as wr
from windrow import recsys
from windrow.comm.world import World

LABELS, DENSE, FEATURES = ["click", "buy"], ["price"], ["article", "customer"]


class TwoTaskNet(nn.Module):
    """Tables of one's own model, hidden layers for both tasks, one output for each."""

    def __init__(self, tables: recsys.EmbeddingBagCollection, num_dense: int, num_tasks: int) -> None:
        super().__init__()
        self.tables = tables
        self.shared = nn.Linear(num_dense + sum(tables.embedding_dims), 32)
        self.heads = nn.Linear(32, num_tasks)

    def forward(self, batch: recsys.Batch) -> Tensor:
        """Logits [B, tasks]."""
        pooled = self.tables(batch.sparse).values()
        logits: Tensor = self.heads(self.shared(torch.cat([batch.dense, pooled], 1)).relu())
        return logits


def train_day(world: World, folder: Path, day: str, before: str | None) -> None:
    """Train on the log of a day, starting from another day's run."""
    log = recsys.prepare(
        folder / f"{day}.parquet",
        folder / day,
        label=LABELS,
        dense=DENSE,
        features=FEATURES,
        vocabularies_from=before and folder / before,
        world=world,
    )
    tables = recsys.EmbeddingBagCollection(
        log.tables(dim=8), world=world, plan="greedy", optimizer=recsys.TableOptions(learning_rate=0.1)
    )
    model = TwoTaskNet(tables, log.num_dense, len(log.labels))
    with wr.Trainer(world, model, recsys.ClickTask(log), epochs=4, batch_size=256, learning_rate=0.01) as trainer:
        trainer.fit(run_folder=folder / f"run-{day}", init_from=before and folder / f"run-{before}")
        metrics = trainer.evaluate("test")["test"]
    recsys.export(model, log, folder / f"model-{day}")
    if world.rank == 0:
        print(f"{day}: AUC of clicks {metrics['click.auc']:.3f}, of purchases {metrics['buy.auc']:.3f}")


def make_log(path: Path, seed: int, articles: int) -> None:
    """4,000 rows."""
    draw = np.random.default_rng(seed)
    article, price = draw.integers(0, articles, 4000), draw.gamma(2.0, size=4000)
    wanted = 2 * (article % 3 == 0) + np.where(article % 2 == 0, 1.5, -1.5)
    chances = [1 / (1 + np.exp(-(wanted - shift - price))) for shift in (-1, 1)]
    columns = {label: draw.random(4000) < chance for label, chance in zip(LABELS, chances, strict=True)}
    columns |= {"price": price, "article": [f"lamp {number}" for number in article]}
    parquet.write_table(pa.table(columns | {"customer": draw.integers(0, articles, 4000)}), path)


def main(folder: Path) -> None:
    """Every rank runs this."""
    torch.manual_seed(1)
    with wr.connect() as world:
        for day, before, articles in (("monday", None, 40), ("tuesday", "monday", 60)):
            if world.rank == 0:
                folder.mkdir(parents=True, exist_ok=True)
                make_log(folder / f"{day}.parquet", articles, articles)
            train_day(world, folder, day, before)
        if world.rank == 0:
            request = {"price": [0.5], "article": ["lamp 3"], "customer": [7]}
            click, _ = recsys.load(folder / "model-tuesday").predict(request)[0].tolist()
            print(f"customer 7 clicks on lamp 3 with probability {click:.2f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    main(parser.parse_args().folder)

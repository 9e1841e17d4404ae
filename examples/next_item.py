"""What will be clicked next: sessions in, recommendations out, with clustered and deduplicated minibatches.

    python -P examples/next_item.py
    mpirun -n 2 python -P examples/next_item.py --epochs 5 --sessions mine.npz

mine.npz holds `items` [clicks], from 0, one session behind the other, and `offsets` [sessions + 1], where each begins.
Without it sessions are made up, in which an item is followed by one of its two neighbours; the last tenth is for test.
"""

import argparse
from pathlib import Path

import numpy as np
import torch

import windrow as wr
from windrow import recsys
from windrow.partition.tables import plan_with_planner
from windrow.recsys.batches.jagged import Jagged
from windrow.recsys.batches.sampling import NegativeSampler
from windrow.recsys.batches.sessions import ITEM, SessionReader, Sessions, load_sessions
from windrow.recsys.models.retrieval import NextItem, next_item_tables
from windrow.recsys.ranking_evaluation import NextItemEvaluator

DIM, BATCH_SIZE, NEGATIVES, TABLE_RATE, SEED = 32, 256, 256, 0.1, 0


def make_sessions() -> Sessions:
    """2000 sessions of 2 to 8 clicks on 500 items, which stand in a circle."""
    generator = np.random.default_rng(SEED)
    lengths = generator.integers(2, 9, 2000)
    offsets = np.cumsum([0, *lengths])
    steps = generator.choice([-1, 1], lengths.sum())
    steps[offsets[:-1]] = generator.integers(0, 500, len(lengths))
    walks = [np.cumsum(part) % 500 for part in np.split(steps, offsets[1:-1])]
    return Sessions(Jagged(np.concatenate(walks), offsets))


def main(epochs: int, everything: Sessions) -> None:
    """Every rank runs this."""
    counts = np.bincount(everything.clicks.values)
    sessions, last = everything.split(len(everything.clicks) // 10)
    negatives = NegativeSampler(counts, NEGATIVES, exponent=0.5, seed=SEED)
    with wr.connect() as world:
        reader = SessionReader(
            sessions, rank=world.rank, size=world.size, batch_size=BATCH_SIZE, negatives=negatives, seed=SEED,
            order="sessions", deduplicated=True,
        )  # fmt: skip
        configs, options = next_item_tables(len(counts), DIM), recsys.TableOptions(dim=DIM, learning_rate=TABLE_RATE)
        plan = plan_with_planner("row_wise", recsys.table_specs(configs, options), world.size)
        tables = recsys.EmbeddingCollection(
            configs, world=world, plan=plan, groups=[[ITEM]], optimizer=options, seed=SEED
        )
        correction = torch.from_numpy(negatives.log_probabilities())
        model = NextItem(DIM, log_probabilities=correction, generator=torch.Generator().manual_seed(SEED))
        recommender = recsys.Recommender(None, tables, model)
        test = {"test": last.samples(np.arange(last.num_samples))}
        evaluator = NextItemEvaluator(world, recommender, test, num_items=len(counts), k=5, deduplicated=True)
        task = recsys.RecommendationTask(reader, evaluator)
        with wr.Trainer(world, recommender, task, epochs=epochs, learning_rate=0.003, seed=SEED) as trainer:
            trainer.fit(name="next_item")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--sessions", type=Path)
    given = parser.parse_args()
    main(given.epochs, load_sessions(given.sessions) if given.sessions else make_sessions())

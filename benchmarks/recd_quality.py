"""Deduplication costs no quality: next items of Diginetica's sessions from clustered and from shuffled minibatches.

Deduplicating a minibatch changes no result, but it pays only where the samples of a session stand next to one another
(RecD; Zhao et al., MLSys 2023, arXiv 2211.05239), and such minibatches hold fewer, more alike sessions. Every prefix of
a session is a sample of `windrow.recsys.models.retrieval`; the same model, from the same first weights, learns

  shuffled            samples shuffled anew in each epoch, every list and item looked up for itself: the baseline;
  clustered           sessions shuffled anew, their samples together, what repeats looked up once;
  clustered_in_full   the same minibatches, not deduplicated: must train alike, but for rounding;
  ..._halved          either, in minibatches of half the size: twice the steps, each from as few sessions.

The last sessions are for early stopping; each run counts with recall@20 and mrr@20 of the test prefixes, among all
items, at its best validation epoch. Seeds change first weights, order, negatives and dropout. Aim: the mean difference
over the seeds is no loss beyond two standard errors. NARM (Li et al., CIKM 2017) is quoted from memory: a recall@20 of
about 0.497 and an mrr@20 of about 0.162, under a preprocessing of its own. `--short` takes a part of the sessions and
says little.

    python benchmarks/recd_quality.py [--short] [--data FOLDER]
"""

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch

from benchmarks.harness.compare import mean_and_standard_error
from benchmarks.harness.data_sets import DIGINETICA, data_option, read_sessions
from benchmarks.harness.program import MissingDataError, Program, run_benchmark
from benchmarks.harness.result import Aim, Findings, Table
from windrow.comm.loopback import Loopback
from windrow.comm.numpy_files import integer_row, load_arrays
from windrow.recsys.batches.batch import Batch
from windrow.recsys.batches.jagged import Jagged
from windrow.recsys.batches.sampling import NegativeSampler
from windrow.recsys.batches.sessions import ITEM, NextItemSamples, SessionReader, Sessions
from windrow.recsys.models.retrieval import NextItem, next_item_tables
from windrow.recsys.ranking_evaluation import NextItemEvaluator
from windrow.recsys.recommender import Recommender
from windrow.recsys.sharded.sequences import EmbeddingCollection
from windrow.recsys.tables.options import TableOptions
from windrow.recsys.task import RecommendationTask
from windrow.training.schedule import EarlyStopping
from windrow.training.trainer import Trainer

SHUFFLED, CLUSTERED, IN_FULL = "shuffled", "clustered", "clustered_in_full"
SHUFFLED_HALVED, CLUSTERED_HALVED = "shuffled_halved", "clustered_halved"
SEEDS, SEEDS_SHORT = 3, 2
SESSIONS_SHORT = 6000
"""The last ones: about 23,000 samples."""
VALIDATION_SESSIONS, VALIDATION_SESSIONS_SHORT = 4000, 500
TEST_SHORT = 4000
EPOCHS, EPOCHS_SHORT = 14, 2
PATIENCE = 1
DIM, BATCH_SIZE, NEGATIVES, MAX_HISTORY = 64, 512, 1024, 20
DROPOUT, TEMPERATURE, NEGATIVE_EXPONENT = 0.2, 0.07, 0.5
LEARNING_RATE, TABLE_LEARNING_RATE, INITIAL_SCALE = 0.003, 0.1, 0.1
"""Chosen for the shuffled variant on half of the sessions, by its validation recall."""
ONE_BY_ONE = (SHUFFLED, SHUFFLED_HALVED)
DEDUPLICATED = (CLUSTERED, CLUSTERED_HALVED)
HALVED = (SHUFFLED_HALVED, CLUSTERED_HALVED)
BASELINES = {CLUSTERED: SHUFFLED, CLUSTERED_HALVED: SHUFFLED_HALVED}
"""Of equal minibatches."""
EQUAL = 0.01
"""Recall of one run may differ by so much with and without deduplication: rounding is enough for another course."""
REMEMBERED = {"recall@20": 0.497, "mrr@20": 0.162}


class Counted:
    """A reader whose ids are counted."""

    def __init__(self, reader: SessionReader) -> None:
        self.reader = reader
        self.lookups = 0
        self.steps_per_epoch = reader.steps_per_epoch
        self.samples_per_epoch = reader.samples_per_epoch
        self.global_batch_size = reader.global_batch_size

    @contextmanager
    def batches(self, epoch: int, first_step: int = 0) -> Iterator[Iterator[Batch]]:
        """Those of the reader."""
        with self.reader.batches(epoch, first_step) as batches:
            yield map(self._count, batches)

    def _count(self, batch: Batch) -> Batch:
        self.lookups += sum(
            len(part.values()) for part in (batch.sparse, *(group.unique for group in batch.deduplicated))
        )
        return batch


def read_data(folder: Path, *, short: bool) -> tuple[Sessions, dict[str, NextItemSamples], int]:
    """Sessions to learn from, samples of the validation and the test split, and the number of rows of the table."""
    path = folder / DIGINETICA
    items, offsets = read_sessions(path)
    num_items = int(items.max()) + 1
    sessions = Sessions(Jagged(items, offsets), MAX_HISTORY)
    if short:
        sessions = sessions.split(SESSIONS_SHORT)[1]
    sessions, last = sessions.split(VALIDATION_SESSIONS_SHORT if short else VALIDATION_SESSIONS)
    arrays = load_arrays(path)
    test_offsets, test_items, targets = (
        integer_row(path, arrays, f"test_{name}") for name in ("offsets", "items", "target")
    )
    histories = Jagged(test_items, test_offsets)
    if short:
        targets = targets[:TEST_SHORT]
        histories = histories.slice(0, TEST_SHORT)
    validation = last.samples(np.arange(last.num_samples))
    return sessions, {"validation": validation, "test": NextItemSamples(histories, targets)}, num_items


def work(task: Mapping[str, Any], first_rows: Path | None = None) -> dict[str, Any]:
    """Train once, with early stopping; the table starts from the rows of a file, where there is one."""
    from windrow.comm.process import keep_freed_memory

    keep_freed_memory()
    short, seed, variant = task["short"], task["seed"], task["variant"]
    deduplicated = variant in DEDUPLICATED
    batch_size = BATCH_SIZE // 2 if variant in HALVED else BATCH_SIZE
    sessions, samples, num_items = read_data(Path(task["data"]), short=short)
    world = Loopback.single()
    negatives = NegativeSampler(
        np.bincount(sessions.clicks.values, minlength=num_items), NEGATIVES, exponent=NEGATIVE_EXPONENT, seed=seed
    )
    source = Counted(
        SessionReader(
            sessions,
            rank=0,
            size=1,
            batch_size=batch_size,
            negatives=negatives,
            seed=seed,
            order="samples" if variant in ONE_BY_ONE else "sessions",
            deduplicated=deduplicated,
        )
    )
    tables = EmbeddingCollection(
        next_item_tables(num_items, DIM),
        world=world,
        groups=[[ITEM]] if deduplicated else (),
        optimizer=TableOptions(
            dim=DIM,
            learning_rate=TABLE_LEARNING_RATE,
            initial_scale=INITIAL_SCALE,
            pretrained={ITEM: first_rows} if first_rows else {},
        ),
        seed=seed,
    )
    model = NextItem(
        DIM,
        temperature=TEMPERATURE,
        dropout=DROPOUT,
        log_probabilities=torch.from_numpy(negatives.log_probabilities()),
        generator=torch.Generator().manual_seed(seed),
    )
    recommender = Recommender(None, tables, model)
    trainer = Trainer(
        world,
        recommender,
        RecommendationTask(source),
        epochs=EPOCHS,
        batch_size=batch_size,
        learning_rate=LEARNING_RATE,
        seed=seed,
    )

    def measure(split: str) -> dict[str, float]:
        recommender.eval()
        evaluator = NextItemEvaluator(
            world, recommender, {split: samples[split]}, num_items=num_items, deduplicated=deduplicated
        )
        return evaluator.evaluate()[split]

    stopping = EarlyStopping(patience=PATIENCE)
    seconds, losses, recalls, best = [], [], [], None
    for epoch in range(EPOCHS_SHORT if short else EPOCHS):
        start = time.perf_counter()
        losses.append(trainer.train_epoch(epoch))
        seconds.append(time.perf_counter() - start)
        found = measure("validation")
        recalls.append(found["recall@20"])
        print(f"{variant} {seed}: epoch {epoch + 1} {seconds[-1]:.1f} s {found}", file=sys.stderr, flush=True)
        if stopping.update(epoch, found["recall@20"]):
            learnt = [
                [replace(part, tensor=part.tensor.clone()) for part in table.state()]
                for table in recommender.local_tables()
            ]
            best = learnt, clone(model)
        if stopping.should_stop:
            break
    trainer.close()
    assert best is not None
    for table, state in zip(recommender.local_tables(), best[0], strict=True):
        table.load_state(state)
    model.load_state_dict(best[1])
    found = measure("test")
    print(f"{variant} {seed}: test, of epoch {stopping.best_epoch + 1} {found}", file=sys.stderr, flush=True)
    return {
        **found,
        "validation": stopping.best_value,
        "validations": recalls,
        "best_epoch": stopping.best_epoch + 1,
        "first_loss": losses[0],
        "epoch_s": seconds,
        "lookups": source.lookups / len(seconds),
    }


def clone(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The weights, in memory of their own."""
    return {name: value.clone() for name, value in model.state_dict().items()}


def differences(
    runs: Mapping[tuple[str, int], Mapping[str, Any]], variant: str, seeds: Sequence[int], metric: str
) -> tuple[float, float]:
    """Mean over the seeds of a clustered variant less the shuffled one, and its standard error."""
    found = [runs[variant, seed][metric] - runs[BASELINES[variant], seed][metric] for seed in seeds]
    return mean_and_standard_error(found)


def measure(program: Program) -> Findings:
    """Train every variant from every seed, one on each core at a time; in full only once, to compare."""
    folder = program.options.data.resolve()
    if not (folder / DIGINETICA).is_file():
        raise MissingDataError(
            f"no {DIGINETICA} in {folder}: give its folder with --data (docs/session-recommendation.md)"
        )
    seeds = range(SEEDS_SHORT if program.short else SEEDS)
    compared = (SHUFFLED, CLUSTERED, SHUFFLED_HALVED, CLUSTERED_HALVED)
    wanted = [(variant, seed) for seed in seeds for variant in compared] + [(IN_FULL, 0)]

    tasks = [
        {"variant": variant, "seed": seed, "short": program.short, "data": str(folder)} for variant, seed in wanted
    ]
    runs = dict(zip(wanted, program.in_processes(tasks, threads=1), strict=True))
    rows = [
        {
            "variant": variant,
            "seed": seed,
            "recall@20": of["recall@20"],
            "mrr@20": of["mrr@20"],
            "validation recall@20": of["validation"],
            "best epoch": of["best_epoch"],
            "loss of epoch 1": of["first_loss"],
            "median epoch (s)": float(np.median(of["epoch_s"])),
            "lookups per epoch": int(of["lookups"]),
            "lookups until then": int(of["lookups"] * of["best_epoch"]),
        }
        for (variant, seed), of in runs.items()
    ]
    figures: dict[str, float] = {}
    aims = {}
    for metric, short_name in (("recall@20", "recall"), ("mrr@20", "mrr")):
        for variant in compared:
            values = [runs[variant, seed][metric] for seed in seeds]
            mean, error = mean_and_standard_error(values)
            figures[f"{variant}_{short_name}_share"] = mean
            figures[f"{variant}_{short_name}_standard_error_share"] = error
        for variant, baseline in BASELINES.items():
            mean, error = differences(runs, variant, seeds, metric)
            figures[f"{variant}_{short_name}_difference_share"] = mean
            figures[f"{variant}_{short_name}_difference_standard_error_share"] = error
            aims[f"{variant}_{short_name}"] = Aim(
                f"mean {metric} of {variant} less that of {baseline}: no loss beyond two standard errors",
                mean >= -2 * error,
            )
    equal = abs(runs[CLUSTERED, 0]["recall@20"] - runs[IN_FULL, 0]["recall@20"])
    figures["in_full_recall_difference_share"] = equal
    aims["equal"] = Aim(f"recall@20 within {EQUAL} with and without deduplication", equal <= EQUAL)
    for variant in compared:
        of_seeds = [runs[variant, seed] for seed in seeds]
        figures[f"{variant}_best_epoch_count"] = fmean(of["best_epoch"] for of in of_seeds)
        figures[f"{variant}_lookups_count"] = fmean(of["lookups"] for of in of_seeds)
        figures[f"{variant}_lookups_until_best_count"] = fmean(of["lookups"] * of["best_epoch"] for of in of_seeds)
    figures["lookups_ratio"] = figures["shuffled_lookups_count"] / figures["clustered_lookups_count"]
    return Findings(
        figures=figures,
        aims=aims,
        tables={
            "Test prefixes of Diginetica, among all items, at the best validation epoch": Table.from_rows(rows),
            "From memory": Table.from_rows([{"model": "NARM", **REMEMBERED}]),
        },
    )


if __name__ == "__main__":
    run_benchmark(__file__, __doc__, measure, work=work, add_options=data_option(DIGINETICA, "recsys"))

"""What the model of a run says about samples of a log, by all ranks together, and what that is worth.

rank 0        maps files of samples that came after training, by the rules and vocabularies of the run's store
every rank    outputs of its share of the samples
rank 0        writes them as Parquet, in the order of the log, whole or not at all::

    row: int64    click: float    buy: float       one row per sample: of each label the probability of a 1,
    0             0.91            0.12             or the value where labels are real numbers
"""

import contextlib
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from windrow.comm.connect import ending_all_ranks
from windrow.comm.errors import RecipeError
from windrow.comm.world import World
from windrow.launch.commands.arguments import LONG_DEADLINE_S, check_writable, writing
from windrow.launch.prediction import Prediction, arrow_table
from windrow.launch.rank_process import RunOptions, joined_job
from windrow.launch.recipe import AnyRecipe, Recipe
from windrow.launch.recommendation_recipe import RecommendationRecipe
from windrow.launch.training import make_trainer, without_pretrained
from windrow.partition.atomic_writes import open_atomically
from windrow.recsys.log.prepare import prepare_rows
from windrow.recsys.log.store import LogStore
from windrow.recsys.ranking_evaluation import RankingEvaluator
from windrow.recsys.task import RecommendationTask
from windrow.training.checkpoint import WhichCheckpoint, check_fits
from windrow.training.run_folder import RunFolder
from windrow.training.terminal import make_progress

__all__ = ["evaluate", "predict_log", "recommend"]


def predict_log(
    recipe: RecommendationRecipe,
    run_folder: RunFolder,
    *,
    out: Path,
    checkpoint: WhichCheckpoint = "best",
    split: str = "test",
    files: Sequence[Path] = (),
) -> Prediction:
    """Write the predictions for samples. Collective: every process that the launcher started calls it.

    Args:
        recipe: of the run; must agree, as everything else.
        run_folder: of the run.
        out: Parquet file to write, or to replace.
        checkpoint: whose weights.
        split: of the run's log.
        files: instead: files or patterns of samples that came later, in the log's own format; labels may be absent.

    Raises:
        RecipeError: the run is of a model that does not predict labels.
        StoreError: store or checkpoint are missing, damaged, or do not belong together; or the file cannot be written.
        DataError: samples do not fit.

    Memory: all predictions, on every rank.
    """
    if recipe.model.kind == "two_tower":
        raise RecipeError("the run recommends items and predicts no labels: see windrow recommend")
    with ending_all_ranks():
        check_writable(out, parquet=True)
    with (
        joined_job(_run_options(recipe, files)) as (world, device),
        make_trainer(world, without_pretrained(recipe), device) as trainer,
    ):
        epoch = trainer.load_weights(run_folder.path, checkpoint).header.epoch
        store = LogStore.open(recipe.store)
        with _new_samples(world, recipe, files, out) as rows:
            predicted = trainer.predict(split) if rows is None else trainer.predict(log=rows)
        if store.manifest.label_kind == "binary":
            predicted = predicted.sigmoid()
        if world.rank == 0:
            values = predicted.reshape(len(predicted), -1).T.numpy()
            columns = {"row": np.arange(len(predicted))} | dict(zip(store.labels, values, strict=True))
            _write(out, columns, {"run": recipe.name, "epoch": epoch, "split": None if files else split})
        world.barrier(stage="predictions")
    return Prediction(out=out, rows=len(predicted), epoch=epoch)


def evaluate(
    recipe: AnyRecipe, run_folder: RunFolder, *, checkpoint: WhichCheckpoint = "best", files: Sequence[Path] = ()
) -> dict[str, dict[str, float]]:
    """Measure the model of a run as training does. Collective: every process that the launcher started calls it.

    Args:
        recipe: of the run, on a graph or on a log; must agree, as everything else.
        run_folder: of the run.
        checkpoint: whose weights.
        files: of labelled samples that came later, for a log; none: the splits that training measures.

    Returns:
        For each split its figures by name; those of `files` as "test". The same on every rank.

    Raises:
        WindrowError: as of `predict_log`, and where samples have no labels.
    """
    with (
        joined_job(_run_options(recipe, files)) as (world, device),
        make_trainer(world, without_pretrained(recipe), device) as trainer,
    ):
        header = trainer.load_weights(run_folder.path, checkpoint).header
        if isinstance(recipe, Recipe):
            check_fits(header, recipe=header.recipe, data_fingerprint=trainer.task.fingerprint, data="graph")
        with _new_samples(world, recipe, files, run_folder.path / "evaluated") as rows:
            return trainer.evaluate() if rows is None else trainer.evaluate(log=rows)


def recommend(
    recipe: RecommendationRecipe,
    run_folder: RunFolder,
    *,
    out: Path,
    k: int = 20,
    users: npt.NDArray[np.int64] | None = None,
    checkpoint: WhichCheckpoint = "best",
) -> Prediction:
    """Write the best items for users. Collective: every process that the launcher started calls it.

    Args:
        recipe: of the run of a two_tower model; must agree, as everything else.
        run_folder: of the run.
        out: Parquet file to write, or to replace: user, items and their scores, best first.
        k: items for each user, among those that the log does not know the user to have taken.
        users: [n] their numbers; None: all.
        checkpoint: whose weights.

    Raises:
        WindrowError: as of `predict_log`; or there is no such user.
    """
    with ending_all_ranks():
        check_writable(out, parquet=True)
    with joined_job(recipe.run) as (world, device), make_trainer(world, without_pretrained(recipe), device) as trainer:
        evaluator = trainer.task.evaluator if isinstance(trainer.task, RecommendationTask) else None
        if not isinstance(evaluator, RankingEvaluator):
            raise RecipeError("the run predicts labels and recommends no items: see windrow predict")
        epoch = trainer.load_weights(run_folder.path, checkpoint).header.epoch
        wanted = np.arange(evaluator.num_users) if users is None else users
        items, scores = evaluator.recommend(wanted, k)
        if world.rank == 0:
            columns = {"user": wanted, "items": items.numpy(), "scores": scores.numpy()}
            _write(out, columns, {"run": recipe.name, "epoch": epoch})
        world.barrier(stage="recommendations")
    return Prediction(out=out, rows=len(wanted), epoch=epoch)


def _run_options(recipe: AnyRecipe, files: Sequence[Path]) -> RunOptions:
    """How the job runs: where samples are mapped, ranks wait for that."""
    if not files:
        return recipe.run
    if not isinstance(recipe, RecommendationRecipe) or recipe.log.format == "interactions":
        with ending_all_ranks():
            raise RecipeError("--log is for the run of a model of clicks: leave it out")
    return replace(recipe.run, deadline_s=max(recipe.run.deadline_s, LONG_DEADLINE_S))


@contextlib.contextmanager
def _new_samples(world: World, recipe: AnyRecipe, files: Sequence[Path], beside: Path) -> Iterator[LogStore | None]:
    """Map samples to a store beside a file, which is gone afterwards; None without files. Collective."""
    if not files:
        yield None
        return
    assert isinstance(recipe, RecommendationRecipe)
    folder = beside.absolute().with_name(f".{beside.name}.samples")
    try:
        with make_progress(rank=world.rank) as progress:
            like, paths = LogStore.open(recipe.store), [file.absolute() for file in files]
            rows = prepare_rows(folder, paths, like, overwrite=True, progress=progress.report, world=world)
            progress.finish()
        yield rows
        world.barrier(stage="samples")
    finally:
        if world.rank == 0:
            shutil.rmtree(folder, ignore_errors=True)


def _write(path: Path, columns: Mapping[str, npt.NDArray[Any]], about: Mapping[str, Any]) -> None:
    """Write columns of `arrow_table` as Parquet."""
    from pyarrow import parquet

    table = arrow_table(columns, about)
    with writing(path, "--out"), open_atomically(path) as file:
        parquet.write_table(table, file, compression="zstd")

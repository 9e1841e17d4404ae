"""A recipe's training run: its model, task and trainer."""

import contextlib
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import torch

from windrow.comm.connect import ending_all_ranks
from windrow.comm.errors import RecipeError
from windrow.comm.hosts import gather_hosts
from windrow.comm.launcher import launched_rank
from windrow.comm.world import World
from windrow.gnn.full_graph import FullGraphTask
from windrow.gnn.models import GNN, build_model
from windrow.gnn.partitioned import PartitionedGraph
from windrow.gnn.partitioning import check_vertex_order
from windrow.gnn.task import NodeTask
from windrow.gnn.types import GraphTypes
from windrow.launch.known_links import kept_links, world_of_sums
from windrow.launch.rank_process import joined_job
from windrow.launch.recipe import VERTEX_TABLE, AnyRecipe, Recipe
from windrow.training.callbacks import Callback, TensorBoard
from windrow.training.checkpoint import CheckpointOptions
from windrow.training.journal import TrainingResult
from windrow.training.run_folder import RunFolder, Start, check_free
from windrow.training.trainer import Trainer

if TYPE_CHECKING:
    from windrow.recsys.sharded.sequences import EmbeddingCollection
    from windrow.training.task import Task

__all__ = ["gnn_of", "make_trainer", "rows_of_vertices", "train", "without_pretrained"]

AKind = TypeVar("AKind", bound=AnyRecipe)


def train(
    recipe: AnyRecipe,
    *,
    resume: Path | Literal["auto"] | None = None,
    run_folder: Path | None = None,
    trace: bool = False,
) -> TrainingResult:
    """Train as a recipe says. Collective: every process that the launcher started calls it, with the same arguments.

    Args:
        recipe: from `windrow.launch.recipe.load_any_recipe`.
        resume: folder of a run to go on with, from its latest intact checkpoint; "auto": that of `run_folder`, where it
            has one, else begin there; None to begin a new run.
        run_folder: folder for a new run; None for the recipe's, or the next free ``runs/<name>-<n>``.
        trace: whether to write a timeline of the first epochs into the run folder (`windrow.training.timeline`).

    Returns:
        The figures at the best validation epoch, the same on every rank.

    Raises:
        WindrowError: the store, the recipe or the checkpoint does not fit, or the folder is in use; before training
            starts.
    """
    with ending_all_ranks():
        folder = resume if isinstance(resume, Path) else run_folder or recipe.run.folder
        if isinstance(resume, Path) and run_folder is not None:
            raise RecipeError(
                f"--resume {resume} with --run-folder {run_folder}: a run goes on in its own folder. Leave one of both "
                "out, or say --resume auto"
            )
        if resume == "auto" and folder is None:
            raise RecipeError("--resume auto needs the folder of the run: give --run-folder, or set run.folder")
        start: Start = "resumed" if isinstance(resume, Path) else "new"
        if folder is not None and launched_rank() == 0:
            start = RunFolder(folder).next_start() if resume == "auto" else start
            if start == "new":
                check_free(folder)
    with contextlib.ExitStack() as stack:
        world, device = stack.enter_context(joined_job(recipe.run))
        start = world.broadcast_object(start, root=0, stage="run folder")
        made_by = without_pretrained(recipe) if start == "resumed" else recipe
        trainer = stack.enter_context(make_trainer(world, made_by, device))
        return trainer.fit(
            run_folder=folder,
            resume="auto" if resume == "auto" else resume is not None,
            name=recipe.name,
            settings=recipe.settings(),
            decisive=recipe.decisive_settings(),
            trace=trace,
            evaluate_every=recipe.evaluation.every_epochs,
            patience=recipe.evaluation.patience_epochs,
            **{field.name: getattr(recipe.run, field.name) for field in dataclasses.fields(CheckpointOptions)},
        )


def make_trainer(world: World, recipe: AnyRecipe, device: torch.device) -> Trainer:
    """The trainer of a recipe. Collective.

    Args:
        world: for a graph, one rank for each part of the store.
        recipe: the same on all ranks.
        device: where the model computes.

    Raises:
        WindrowError: the data or the recipe do not fit.
    """
    model: torch.nn.Module
    task: Task[Any]
    callbacks: list[Callback] = [TensorBoard()] if recipe.run.tensorboard else []
    if isinstance(recipe, Recipe):
        model, task = _graph(world, recipe, device)
    else:
        from windrow.recsys.recommendation import recommendation

        links = kept_links(world, gather_hosts(world), device) if recipe.plan.asks_costs else None
        model, task = recommendation(world, recipe, device, seed=recipe.run.seed, links=links)
        if recipe.plan.replan_every_steps:
            from windrow.recsys.replan import Replan

            callbacks.append(Replan(recipe.plan, links=links))
    return Trainer(
        world,
        model,
        task,
        recipe.training,
        seed=recipe.run.seed,
        wire=recipe.wire,
        sums_world=world_of_sums(world, recipe.wire.topology, device=device),
        callbacks=callbacks,
    )


def without_pretrained(recipe: AKind) -> AKind:
    """The same for weights that a checkpoint has, so that files of first values may be gone."""
    return dataclasses.replace(recipe, tables=dataclasses.replace(recipe.tables, pretrained={}))


def _graph(world: World, recipe: Recipe, device: torch.device) -> "tuple[torch.nn.Module, Task[Any]]":
    graph = PartitionedGraph.open(recipe.store, rank=world.rank, size=world.size)
    task: Task[Any]
    embedding = rows_of_vertices(world, recipe, graph, device)
    if recipe.full_graph.enabled:
        predicts = recipe.full_graph.messages == "adaptive" or recipe.full_graph.method == "auto"
        links = kept_links(world, gather_hosts(world), device) if predicts else None
        task = FullGraphTask(graph, recipe.full_graph, links=links, evaluation=recipe.evaluation, embedding=embedding)
    else:
        if device.type == "cuda":
            check_vertex_order(graph.order, recipe, gpu_share=recipe.cache.gpu_share)
        task = NodeTask(
            graph.stored_as(recipe.sampler.storage),
            recipe.sampler.fanouts,
            order=recipe.sampler.order,
            evaluation=recipe.evaluation,
            cache=recipe.cache,
            pipeline=recipe.pipeline,
            embedding=embedding,
        )
    return gnn_of(recipe, graph).to(device), task


def gnn_of(recipe: Recipe, graph: PartitionedGraph, types: GraphTypes | None = None) -> GNN:
    """The model of a recipe, for a graph or one with these types."""
    columns = graph.num_features + recipe.vertex_table.dim * recipe.model.embedding
    outputs, seed = graph.num_outputs, recipe.run.seed
    return build_model(recipe.model, in_features=columns, out_features=outputs, seed=seed, types=types or graph.types)


def rows_of_vertices(
    world: World, recipe: Recipe, graph: PartitionedGraph, device: torch.device
) -> "EmbeddingCollection | None":
    """Rows that are learnt, dense ones each where its vertex is; None where the recipe wants none. Collective."""
    if not recipe.model.embedding:
        return None
    from windrow.recsys.sharded.sequences import EmbeddingCollection
    from windrow.recsys.tables.options import EmbeddingConfig

    own = recipe.vertex_table
    return EmbeddingCollection(
        [EmbeddingConfig(graph.num_vertices, own.dim, VERTEX_TABLE)],
        device,
        world=world,
        # What rows of other forms are computed from is on every rank in any case.
        plan=graph.plan_of_rows(VERTEX_TABLE, own.dim) if own.form == "dense" else "replicated",
        optimizer=recipe.tables,
        wire=recipe.wire,
        seed=recipe.run.seed,
        row_ids=graph.original_ids,
    )

"""The weights of a run's model, on every rank, whatever number of ranks it was trained on."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from windrow.comm.errors import StoreError
from windrow.comm.world import World
from windrow.launch.checkpoint import Checkpoint, load_best, load_latest
from windrow.launch.recipe import Recipe

__all__ = ["WhichCheckpoint", "load_weights"]

WhichCheckpoint = Literal["best", "latest"]
"""That of the best epoch on the validation split, or the last one that is intact."""


def load_weights(
    world: World,
    folder: Path,
    which: WhichCheckpoint,
    *,
    recipe: Recipe,
    fingerprint: str,
    say: Callable[[str], None],
) -> tuple[int, dict[str, Any]]:
    """Read the weights of a graph's model. Collective; only rank 0 looks into the folder.

    Args:
        world: any number of ranks.
        folder: of the checkpoints.
        which: must agree.
        recipe: describes the model; where its store is does not matter.
        fingerprint: of the graph in that store.
        say: told about checkpoints that are damaged, on rank 0.

    Returns:
        Epochs that the model had been trained for, and its state dict, tensors on the CPU.

    Raises:
        StoreError: there is no such checkpoint, it is damaged, or of another model or graph.
    """
    weights: tuple[int, dict[str, Any]] | None = None
    if world.rank == 0:
        found = load_best(folder) if which == "best" else load_latest(folder)
        for message in found.damaged:
            say(f"windrow: passed over a damaged checkpoint: {message}")
        _check_fits(found, recipe, fingerprint)
        # The optimiser's state, which is twice as large, stays here.
        weights = found.header.epoch, found.state["trainer"]["model"]
    return world.broadcast_object(weights, root=0, stage="checkpoint")


def _check_fits(checkpoint: Checkpoint, recipe: Recipe, fingerprint: str) -> None:
    header = checkpoint.header
    if header.recipe.get("model") != recipe.decisive_settings()["model"]:
        raise StoreError(
            f"{checkpoint.path} holds another model than the recipe describes: leave its section [model] as "
            "recipe.toml in the run folder has it"
        )
    if header.data_fingerprint != fingerprint:
        raise StoreError(
            f"{recipe.store} holds another graph than the run was trained on: its fingerprint is "
            f"{fingerprint[:12]}, and that of the run's graph {header.data_fingerprint[:12]}. Partition the run's "
            "graph again, or name its store by --set store=..."
        )

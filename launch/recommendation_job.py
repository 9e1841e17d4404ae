"""Training of a recommendation model, as the training loop sees it."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch

from windrow.comm.meter import Stopwatch, Traffic
from windrow.comm.world import World
from windrow.launch.checkpoint_file import CheckpointHeader
from windrow.launch.placement import table_placement
from windrow.launch.recommendation_parts import click_parts, two_tower_parts
from windrow.launch.recommendation_recipe import RecommendationRecipe
from windrow.recsys.trainer import RecommendationTrainer
from windrow.training.schedule import learning_rate_factor

if TYPE_CHECKING:
    from windrow.recsys.sharded.rank_tables import StoredTable

__all__ = ["RecommendationJob"]

VECTORS = ": vectors"
"""Ends the stages in which embeddings travel; other stages move ids and gradients."""

CLICK_FIGURES = {"test auc": "test auc", "test normalised entropy": "test NE"}
SPEED = {"samples per second": "samples/s"}


class RecommendationJob:
    """A `windrow.launch.job.TrainingJob` on a click log or on interactions.

    Args:
        world: all its ranks make the same job.
        recipe: the same on all ranks.
        device: where tables and model are.

    Raises:
        WindrowError: the data, the plan or the recipe does not fit.
    """

    def __init__(self, world: World, recipe: RecommendationRecipe, device: torch.device) -> None:
        self._world = world
        self._is_ranking = recipe.model.kind == "two_tower"
        parts = (two_tower_parts if self._is_ranking else click_parts)(world, recipe, device)
        self._evaluator = parts.evaluator
        self._fingerprint = parts.fingerprint
        self._collections = parts.recommender.collections()
        self._trainer = RecommendationTrainer(
            world,
            parts.recommender,
            parts.source,
            options=recipe.training,
            table_learning_rate=recipe.tables.learning_rate,
            seed=recipe.run.seed,
            device=device,
        )
        # Its checks need the number of steps, which only the log tells.
        learning_rate_factor(recipe.training.schedule, 0, recipe.training.epochs * self.steps_per_epoch)

    @property
    def data(self) -> Literal["log"]:
        """What is learnt from."""
        return "log"

    @property
    def data_fingerprint(self) -> str:
        """Digest of the user's data."""
        return self._fingerprint

    @property
    def steps_per_epoch(self) -> int:
        """Steps in an epoch."""
        return self._trainer.steps_per_epoch

    @property
    def samples_per_epoch(self) -> int:
        """Training samples."""
        return self._trainer.samples_per_epoch

    @property
    def metric(self) -> str:
        """What chooses the best epoch."""
        return self._evaluator.metric

    @property
    def higher_is_better(self) -> bool:
        """Whether that metric should rise."""
        return self._evaluator.higher_is_better

    @property
    def shown_figures(self) -> Mapping[str, str]:
        """Quality beside the metric (entropy: against the base rate's, 1.0), and speed."""
        if self._is_ranking:
            return {f"test {self.metric.replace('recall', 'ndcg')}": "test ndcg", **SPEED}
        metric = f"test {self.metric.replace('_', ' ')}"
        return {name: header for name, header in CLICK_FIGURES.items() if name != metric} | SPEED

    @property
    def opening_lines(self) -> Sequence[str]:
        """Nothing is left to be told."""
        return ()

    @property
    def learning_rate(self) -> float:
        """The dense part's rate at the last step."""
        return self._trainer.learning_rate

    @property
    def stopwatch(self) -> Stopwatch:
        """Where this rank's seconds go."""
        return self._trainer.stopwatch

    def train_epoch(
        self, epoch: int, *, first_step: int, loss_before: float, after_step: Callable[[int], None]
    ) -> float:
        """Run the steps of an epoch, or the rest of them. Collective."""
        return self._trainer.train_epoch(
            epoch, first_step=first_step, loss_before=loss_before, after_step=after_step
        )

    def loss_so_far(self) -> float:
        """Sum of the losses of the epoch's samples up to now. Collective."""
        return self._trainer.loss_so_far()

    def evaluate(self) -> dict[str, dict[str, float]]:
        """Measure. Collective."""
        # Machines may differ in the last bit, and ranks must agree on when to stop.
        figures = {split: dict(found) for split, found in self._evaluator.evaluate().items()}
        return self._world.broadcast_object(figures, root=0, stage="evaluation")

    def traffic(self) -> Traffic:
        """Embeddings that this rank exchanged."""
        assert self._world.meter is not None
        stages = {stage for stage, _ in self._world.meter.table() if stage.endswith(VECTORS)}
        return sum((self._world.meter.totals(stage) for stage in stages), start=Traffic())

    def placement(self) -> dict[str, Any]:
        """The shards of the tables."""
        tables = [(spec, collection.plan) for collection in self._collections for spec in collection.specs]
        return table_placement(tables, self._world.size)

    def state_dict(self) -> dict[str, Any]:
        """Dense model and its optimiser."""
        return self._trainer.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        self._trainer.load_state_dict(state)

    def local_tables(self) -> "Sequence[StoredTable]":
        """This rank's shards of the tables, with their optimiser states."""
        return self._trainer.local_tables()

    def check_resumable(self, header: CheckpointHeader) -> None:
        """Plan and number of ranks may change: minibatches depend on neither."""

    def close(self) -> None:
        """Detach from the model's parameters."""
        self._trainer.close()

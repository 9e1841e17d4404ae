"""Training of a recommendation model, as the training loop sees it."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch

from windrow.comm.meter import Stopwatch, Traffic
from windrow.comm.world import World
from windrow.launch.checkpoint_file import CheckpointHeader
from windrow.launch.recommendation_recipe import RecommendationRecipe
from windrow.launch.recommendation_tables import (
    bag_configs,
    check_store,
    plan_of,
    plan_tables,
    sequence_configs,
)
from windrow.recsys.batch_reader import BatchReader
from windrow.recsys.evaluation import ClickEvaluator
from windrow.recsys.models.build import build_model
from windrow.recsys.recommender import Recommender
from windrow.recsys.sharded.bag_collection import EmbeddingBagCollection
from windrow.recsys.sharded.sequence_collection import EmbeddingCollection
from windrow.recsys.store import LogStore
from windrow.recsys.trainer import RecommendationTrainer
from windrow.training.schedule import learning_rate_factor

if TYPE_CHECKING:
    from windrow.recsys.sharded.rank_tables import StoredTable

__all__ = ["RecommendationJob"]

VECTORS = ": vectors"
"""Ends the stages in which embeddings travel; other stages move ids and gradients."""

SHOWN_FIGURES = {
    "test auc": "test auc",
    "test normalised entropy": "test NE",
    "samples per second": "samples/s",
}


class RecommendationJob:
    """A `windrow.launch.job.TrainingJob` on a prepared click log.

    Args:
        world: all its ranks make the same job.
        recipe: the same on all ranks.
        device: where tables and model are.

    Raises:
        WindrowError: the store, the plan or the recipe does not fit.
    """

    def __init__(self, world: World, recipe: RecommendationRecipe, device: torch.device) -> None:
        self._world = world
        self._store = LogStore.open(recipe.store)
        check_store(recipe, self._store)
        recommender = _make_recommender(world, recipe, self._store, device)
        self._trainer = RecommendationTrainer(
            world,
            recommender,
            BatchReader(
                self._store,
                "train",
                rank=world.rank,
                size=world.size,
                batch_size=recipe.training.batch_size,
                lanes=recipe.training.lanes,
                shuffle=recipe.training.shuffle,
                shuffle_rows=recipe.training.shuffle_rows,
                seed=recipe.run.seed,
                memory_bytes=recipe.training.reader_memory_bytes,
            ),
            options=recipe.training,
            table_learning_rate=recipe.tables.learning_rate,
            seed=recipe.run.seed,
            device=device,
        )
        # Its checks need the number of steps, which only the log tells.
        learning_rate_factor(recipe.training.schedule, 0, recipe.training.epochs * self.steps_per_epoch)
        self._evaluator = ClickEvaluator(
            world,
            recommender,
            {
                split: BatchReader(
                    self._store,
                    split,
                    rank=world.rank,
                    size=world.size,
                    batch_size=recipe.evaluation.batch_size,
                    lanes=recipe.training.lanes,
                    shuffle="none",
                )
                for split in ("validation", "test")
                if split in self._store.splits and self._store.split(split).rows
            },
            metric=recipe.evaluation.metric,
            device=device,
        )

    @property
    def data(self) -> Literal["log"]:
        """What is learnt from."""
        return "log"

    @property
    def data_fingerprint(self) -> str:
        """Digest of samples and vocabularies."""
        return self._store.fingerprint

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
        """Area under the curve, entropy against the base rate's (1.0), and speed."""
        return {
            name: header
            for name, header in SHOWN_FIGURES.items()
            if name != f"test {self.metric.replace('_', ' ')}"
        }

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
        return self._world.broadcast_object(self._evaluator.evaluate(), root=0, stage="evaluation")

    def traffic(self) -> Traffic:
        """Embeddings that this rank exchanged."""
        assert self._world.meter is not None
        stages = {stage for stage, _ in self._world.meter.table() if stage.endswith(VECTORS)}
        return sum((self._world.meter.totals(stage) for stage in stages), start=Traffic())

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


def _make_recommender(
    world: World, recipe: RecommendationRecipe, store: LogStore, device: torch.device
) -> Recommender:
    """Tables and model with first values. Collective."""
    plan = plan_tables(recipe, store, world.size)
    bag_tables, sequence_tables = bag_configs(recipe, store), sequence_configs(recipe, store)
    bags = EmbeddingBagCollection(
        bag_tables,
        is_weighted=any(feature.weighted for feature in store.features),
        device=device,
        world=world,
        plan=plan_of(plan, {table.name for table in bag_tables}),
        optimizer=recipe.tables,
        seed=recipe.run.seed,
    )
    sequences = None
    if sequence_tables:
        sequences = EmbeddingCollection(
            sequence_tables,
            device=device,
            world=world,
            plan=plan_of(plan, {table.name for table in sequence_tables}),
            optimizer=recipe.tables,
            seed=recipe.run.seed,
        )
    model = build_model(
        recipe.model,
        num_dense=len(store.dense),
        pooled_dims=dict(zip(bags.embedding_names, bags.embedding_dims, strict=True)),
        sequence_dims={
            name: table.embedding_dim for table in sequence_tables for name in table.feature_names
        },
        seed=recipe.run.seed,
    )
    return Recommender(bags, sequences, model.to(device))

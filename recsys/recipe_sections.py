"""The sections of a recommendation model's recipe, each a class beside the component that it configures."""

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path

from windrow.comm.errors import RecipeError
from windrow.comm.options import PathOption, checked_dataclass
from windrow.comm.wire import WireOptions
from windrow.partition.tables.planners import PlanOptions
from windrow.recsys.batches.deduplication.options import DeduplicationOptions
from windrow.recsys.batches.interactions import InteractionOptions
from windrow.recsys.batches.transforms import TransformOptions
from windrow.recsys.evaluation import RecommendationEvaluationOptions
from windrow.recsys.log.options import LogOptions, LogSplitOptions
from windrow.recsys.models.options import ModelOptions
from windrow.recsys.tables.options import TableOptions
from windrow.recsys.task import TrainingOptions

__all__ = ["RecommendationSections"]


@checked_dataclass
class RecommendationSections:
    """Which log, which model, and how it learns; all that a recipe says but where it is run."""

    name: str
    """Names the run folder; the file's name without ".toml" where it is not given."""
    store: PathOption = Path()
    """Folder of the prepared log: written by ``windrow prepare``, read by ``windrow train``. Interactions have none."""
    log: LogOptions
    """Which log, and what its columns mean."""
    split: LogSplitOptions = field(default_factory=LogSplitOptions)
    """Which samples train, validate and test."""
    interactions: InteractionOptions = field(default_factory=InteractionOptions)
    """How a log of format "interactions" becomes minibatches."""
    transforms: Mapping[str, TransformOptions] = field(default_factory=dict)
    """What is done to the ids of some features while the prepared log is read."""
    deduplication: DeduplicationOptions = field(default_factory=DeduplicationOptions)
    """Which features repeat from sample to sample, and what is done once for each distinct list."""
    tables: TableOptions = field(default_factory=TableOptions)
    """How embedding tables are stored, and how they learn."""
    plan: PlanOptions = field(default_factory=PlanOptions)
    """How they are spread over the ranks."""
    wire: WireOptions = field(default_factory=WireOptions)
    """In which number formats vectors and gradients travel between ranks."""
    model: ModelOptions = field(default_factory=ModelOptions)
    """What is computed from embeddings and dense values."""
    training: TrainingOptions = field(default_factory=TrainingOptions)
    """How the weights are learnt."""
    evaluation: RecommendationEvaluationOptions = field(default_factory=RecommendationEvaluationOptions)
    """How and when it is measured."""

    def __post_init__(self) -> None:
        """Check what concerns two sections.

        Raises:
            RecipeError: names both settings, their values and the cure.
        """
        is_ranking, has_interactions = self.model.kind == "two_tower", self.log.format == "interactions"
        if is_ranking != has_interactions:
            raise RecipeError(
                f'log.format = "{self.log.format}" and model.kind = "{self.model.kind}": a two_tower model learns from '
                'format = "interactions", dlrm and dcn learn from labelled logs of any other format'
            )
        if has_interactions:
            self._check_interactions()
        deduplication = self.deduplication
        if deduplication.groups and deduplication.cluster and self.training.shuffle == "window":
            raise RecipeError(
                'deduplication.cluster = true and training.shuffle = "window": shuffling single samples takes sessions '
                'apart again; set training.shuffle = "sessions", or deduplication.cluster = false'
            )
        if not has_interactions and self.store == Path():
            raise RecipeError("needs a value for 'store', the folder that windrow prepare writes the log to")

    def _check_interactions(self) -> None:
        if len(self.log.paths) > 1 or len(self.split.test_paths) > 1:
            raise RecipeError(
                "interactions are read from one file, and from one more for the test split: give one path in log.paths "
                "and at most one in split.test_paths"
            )
        split, plain = self.split, LogSplitOptions()
        names = ("fractions", "instants", "column", "seed", "validation_paths")
        unread = [name for name in names if getattr(split, name) != getattr(plain, name)]
        if unread or split.by == "time":
            raise RecipeError(
                f'split.{unread[0] if unread else "by"} with format = "interactions": leave it out. The test split is '
                'one file (split.by = "files", split.test_paths), and interactions.validation_fraction is left out of '
                "training for validation"
            )
        if split.test_paths and self.log.paths[0].suffix == ".npz":
            raise RecipeError(
                f"split.test_paths with interactions in {self.log.paths[0]}, a file that has its own test split: leave "
                "it out"
            )
        others = {"deduplication.groups": self.deduplication.groups, "transforms": self.transforms}
        self.training.check_unread(*(name for name, given in others.items() if given))

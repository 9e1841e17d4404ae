"""What the training loop asks of a job: of a graph, or of a click log."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

from windrow.comm.meter import Stopwatch, Traffic
from windrow.launch.checkpoint_file import CheckpointHeader

if TYPE_CHECKING:
    from windrow.recsys.sharded.rank_tables import StoredTable

__all__ = ["TrainingJob"]


class TrainingJob(Protocol):
    """One model in training on one rank: trainer, evaluator and data.

    Implementations: `windrow.launch.graph_job.GraphJob`, `windrow.launch.recommendation_job.RecommendationJob`.
    All ranks make the same one, and what their methods return is the same on all ranks where nothing else is said.
    """

    @property
    def data(self) -> Literal["graph", "log"]:
        """What is learnt from, for messages."""

    @property
    def data_fingerprint(self) -> str:
        """Digest of the user's graph or log: a run is resumed with the same one only."""

    @property
    def steps_per_epoch(self) -> int:
        """Steps in an epoch."""

    @property
    def samples_per_epoch(self) -> int:
        """Samples (seeds) in an epoch, over all ranks."""

    @property
    def metric(self) -> str:
        """What chooses the best epoch: a key of the figures that `evaluate` gives."""

    @property
    def higher_is_better(self) -> bool:
        """Whether that metric should rise."""

    @property
    def shown_figures(self) -> Mapping[str, str]:
        """Figures of a record that get a column of the table, beside the metric, with its header."""

    @property
    def opening_lines(self) -> Sequence[str]:
        """What the user is told before the first epoch, by rank 0."""

    @property
    def learning_rate(self) -> float:
        """The rate of the last step."""

    @property
    def stopwatch(self) -> Stopwatch:
        """Where this rank's seconds go."""

    def train_epoch(
        self, epoch: int, *, first_step: int, loss_before: float, after_step: Callable[[int], None]
    ) -> float:
        """Run the steps of an epoch, or the rest of them. Collective.

        Args:
            epoch: from 0.
            first_step: steps of it that are done already.
            loss_before: what `loss_so_far` gave after those.
            after_step: called after each step with the steps now done; it may call collectives.

        Returns:
            Mean loss over the whole epoch.
        """

    def loss_so_far(self) -> float:
        """Sum of the losses of the epoch's samples up to now, over all ranks. Collective."""

    def evaluate(self) -> Mapping[str, Mapping[str, float]]:
        """Measure. Collective.

        Returns:
            For "validation" and "test", where there are such samples, figures by name.
        """

    def traffic(self) -> Traffic:
        """Rows that this rank exchanged since the meter was reset."""

    def placement(self) -> dict[str, Any]:
        """What each rank holds, as `windrow.launch.placement` describes it; not collective."""

    def state_dict(self) -> dict[str, Any]:
        """What all ranks have in common: dense weights and optimiser."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave, on any number of ranks."""

    def local_tables(self) -> "Sequence[StoredTable] | None":
        """This rank's shards of embedding tables, as views to read from and copy into; None where there are none."""

    def check_resumable(self, header: CheckpointHeader) -> None:
        """Refuse a checkpoint for reasons of this kind of job.

        Raises:
            StoreError: says why.
        """

    def close(self) -> None:
        """Let go of everything."""

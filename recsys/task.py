"""Learning on a click log: read, look up, forward; three minibatches in flight.

Counts of one minibatch, ids of the next, lookup and dense work of the third::

    step            i              i + 1          i + 2
    batch i         lookup, dense
    batch i + 1     ids sent       lookup, dense
    batch i + 2     counts sent    ids sent       lookup, dense

As TorchRec's TrainPipelineSparseDist, the answer is that of one minibatch after another: a lookup starts only after the
update of the minibatch before, since it may need the same rows. What overlaps is all that does not depend on weights.
Minibatches whose gradients are added up (`accumulate`) are looked up at once, and vectors and gradients overlap, too.
With `lookahead` those vectors of batch i + 1 travel during step i that its update leaves as they are.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

import torch
from torch import Tensor

from windrow.comm.errors import DataError, RecipeError
from windrow.comm.options import NonNegativeInt, PositiveInt, checked_dataclass
from windrow.partition.tables.plan import table_placement
from windrow.recsys.batches.batch import Batch
from windrow.recsys.batches.batch_reader import BatchReader
from windrow.recsys.batches.deduplication.options import DeduplicationOptions
from windrow.recsys.batches.transforms import TransformOptions, Transforms
from windrow.recsys.evaluation import ClickEvaluator, RecommendationEvaluationOptions, check_split_can_be_scored
from windrow.recsys.log.options import LabelKind
from windrow.recsys.models.click_models import check_outputs, label_loss
from windrow.recsys.recommender import BatchSource, Lookups, PrefetchedModel, Recommender, collections_of, pipelined
from windrow.training import task as training
from windrow.training.dropout import DropoutContext
from windrow.training.embedding import check_number_formats
from windrow.training.task import Loss, Metrics, Task, summed_loss

if TYPE_CHECKING:
    from windrow.recsys.log.store import LogStore

__all__ = ["ClickTask", "RecommendationTask", "TrainingOptions"]


class ModelEvaluator(Protocol):
    """Measures a model that it was made with."""

    @property
    def metric(self) -> str:
        """What chooses the best epoch."""

    @property
    def higher_is_better(self) -> bool:
        """Whether that metric should rise."""

    @property
    def splits(self) -> Sequence[str]:
        """Those that have samples."""

    def evaluate(self) -> dict[str, dict[str, float]]:
        """For each split that has samples, values by name. Collective."""


@checked_dataclass
class TrainingOptions(training.TrainingOptions):
    """How the weights are learnt, with defaults for logs; and in which order samples are read."""

    epochs: PositiveInt = 1
    batch_size: PositiveInt = 2048
    shuffle: Literal["window", "sessions", "none"] = "window"
    """window: samples are shuffled anew in every epoch, inside windows of `shuffle_rows`; sessions: whole sessions are,
    and their samples stay together, in order; none: in order of the log."""
    shuffle_rows: PositiveInt = 1 << 16
    """Samples of a window; one that covers a shard shuffles all of it."""
    reader_shards: PositiveInt = 8
    """Pieces that the log is cut into, each read by one rank: the most ranks that can train. The minibatches depend
    on it, not on the number of ranks."""
    reader_memory_bytes: NonNegativeInt = 1 << 30
    """Up to this many bytes of each split a rank keeps its samples decoded in memory from one epoch to the next."""
    lookahead: bool = False
    """Whether vectors of the next minibatch travel while this one is learnt from, as far as it leaves them unchanged:
    those without a row that any rank looks up now. It changes no result. It pays where the network is what a step waits
    for and few rows come back in the next minibatch; owners look rows up twice. Not with `accumulate`, nor where every
    table is compressed, in replica groups, or learnt by adam or with weight decay."""

    def __post_init__(self) -> None:
        """Check what concerns two settings: RecipeError."""
        if self.lookahead and self.accumulate > 1:
            raise RecipeError(
                f"training.lookahead = true with training.accumulate = {self.accumulate}, which looks minibatches up "
                "at once and hides all of their vectors but the first's: leave one of the two out"
            )

    def check_unread(self, *others: str) -> None:
        """Refuse what says how a prepared log is read, and names of other settings, where none is: RecipeError."""
        usual = type(self)()
        names = ("shuffle", "shuffle_rows", "reader_shards", "reader_memory_bytes")
        given = [f"training.{name}" for name in names if getattr(self, name) != getattr(usual, name)]
        if given := [*given, *others]:
            raise RecipeError(
                f"{' and '.join(given)}: for prepared logs that a task reads, not for a source of its own: leave it out"
            )


class RecommendationTask(Task[Lookups]):
    """Batches from any source, for a model with embedding tables.

    The model is a `Recommender`, or any module that holds collections of tables and is called as ``model(batch)``. It
    calls them with ``batch.sparse`` (and ``batch.deduplicated`` where they were made for groups): these lookups are
    under way by then.

    Args:
        source: this rank's minibatches.
        evaluator: of the same model; None: nothing is measured.
        loss: ``loss(output, labels)`` of the samples of a rank, their mean or one value for each. None: that of the
            `Recommender`'s model; `label_loss` for other modules. Where samples have weights, one value for each.
        fingerprint: digest of the user's data.
        shown_figures: see `Task`.
    """

    data: ClassVar[Literal["graph", "log"]] = "log"
    default_options: ClassVar[training.TrainingOptions] = TrainingOptions()

    _reads_log: ClassVar[bool] = False
    """Whether the task makes the source, by the trainer's options."""
    _label_kind: LabelKind = "binary"
    _measures_labels = False
    """Whether outputs are compared with labels by the product's own metrics, whatever the loss is."""

    def __init__(
        self,
        source: BatchSource,
        evaluator: ModelEvaluator | None = None,
        *,
        loss: Loss | None = None,
        fingerprint: str = "",
        shown_figures: Mapping[str, str] | None = None,
    ) -> None:
        self._loss = loss
        self.fingerprint = fingerprint
        self.shown_figures = shown_figures or {}
        self._use(source, evaluator)

    def _use(self, source: BatchSource, evaluator: ModelEvaluator | None) -> None:
        self._source = source
        self.evaluator = evaluator
        self.metric = "" if evaluator is None else evaluator.metric
        self.higher_is_better = evaluator is None or evaluator.higher_is_better
        self.has_validation = evaluator is not None and "validation" in evaluator.splits

    def start(self) -> None:
        """Find the tables of the model.

        Raises:
            RecipeError: there are none, they were made for other number formats than the trainer's, or nothing of
                them can travel early as `TrainingOptions.lookahead` asks for; minibatches have another size than the
                options say, or these say how a log is read, as the source does.
        """
        self._model = PrefetchedModel(self.setup.model)
        for embedding in self.embeddings:
            check_number_formats(embedding, self.setup.wire)
        options = self.setup.options
        self._lookahead = isinstance(options, TrainingOptions) and options.lookahead
        if self._lookahead:
            self._model.check_lookahead()
        self.steps_per_epoch = self._source.steps_per_epoch
        self.samples_per_epoch = self._source.samples_per_epoch
        if isinstance(options, TrainingOptions) and not self._reads_log:
            options.check_unread()
        asked, given = options.batch_size, self._source.global_batch_size(0, 0)
        # Those of one size, nearly, have at least half as many as were asked for.
        if self.steps_per_epoch > 1 and asked != type(options)().batch_size and not asked <= 2 * given <= 2 * asked:
            raise RecipeError(
                f"training.batch_size = {asked}, but the source gives {given} samples in its first minibatch: make it "
                "with that number, or leave batch_size out"
            )

    def global_batch_size(self, epoch: int, step: int) -> int:
        """Samples of a step, over all ranks."""
        return self._source.global_batch_size(epoch, step)

    @contextmanager
    def minibatches(self, epoch: int, steps: range) -> Iterator[Iterator[Lookups]]:
        """Batches whose lookups have been started, see `pipelined`."""
        with self._source.batches(epoch, steps.start) as batches:
            try:
                yield pipelined(
                    islice(self._read(batches), len(steps)),
                    lambda batch: self._model.start(batch, self.setup.stopwatch),
                    together=self.setup.options.accumulate,
                    first=steps.start,
                    lookahead=self._lookahead,
                )
            finally:
                self._model.forget()

    def loss(self, minibatch: Lookups, epoch: int, step: int) -> Tensor:
        """Of this rank's samples, if there are none too: others wait for the backward pass of the tables."""
        batch, setup = minibatch.batch, self.setup
        context = DropoutContext(seed=setup.seed, epoch=epoch, step=step, row_ids=batch.row_ids.to(setup.device))
        output = self._model.finish(minibatch, context)
        self.round_anew(epoch, step)
        with setup.stopwatch.measure("forward"):
            if self._loss is not None:
                if self._measures_labels:
                    check_outputs(output, batch.labels)
                return summed_loss(self._loss, output, batch.labels, batch.weights)
            if isinstance(setup.model, Recommender):
                found: Tensor = setup.model.model.loss_sum(output, batch)
                return found
            return label_loss(output, batch.labels, batch.weights, kind=self._label_kind)

    def evaluate(self, splits: Sequence[str] = ("validation", "test")) -> dict[str, dict[str, float]]:
        """Measure. Collective."""
        if self.evaluator is None:
            return {}
        unknown = [split for split in splits if split not in ("validation", "test")]
        if unknown:
            raise RecipeError(f"{unknown[0]!r} is not measured on: choose validation or test")
        self.setup.model.eval()
        found = self.evaluator.evaluate()
        # Machines may differ in the last bit, and ranks must agree on when to stop.
        figures = {split: dict(found[split]) for split in splits if split in found}
        return self.setup.world.broadcast_object(figures, root=0, stage="evaluation")

    def placement(self) -> dict[str, Any]:
        """The shards of the tables."""
        tables = [(spec, embedding.plan) for embedding in self.embeddings for spec in embedding.specs]
        return table_placement(tables, self.setup.world.size)

    def _read(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        while True:
            with self.setup.stopwatch.measure("read"):
                batch = next(batches, None)
            if batch is None:
                return
            yield batch.to(self.setup.device)


class ClickTask(RecommendationTask):
    """Labels of the samples of a prepared log, one or several, binary or real.

    Args:
        log: prepared, see `windrow.recsys.log.store.LogStore`.
        loss: as of `RecommendationTask`.
        metrics: ``metric(output, labels)`` of all samples of a split, by name; the first one, higher being better,
            chooses the best epoch. None: see `windrow.recsys.evaluation`, for models that give one output for each
            label.
        evaluation: how much is measured at a time, and by which of the product's own metrics the best epoch is chosen.
        deduplication: which features repeat from sample to sample; the model's tables were made for the same groups.
        transforms: what is done to the ids of some features, by name, while the log is read.
        shown_figures: see `Task`.

    Raises:
        DataError: the log has no labels, or those of a split are all the same.
    """

    _reads_log: ClassVar[bool] = True

    def __init__(
        self,
        log: "LogStore",
        *,
        loss: Loss | None = None,
        metrics: Metrics | None = None,
        evaluation: RecommendationEvaluationOptions | None = None,
        deduplication: DeduplicationOptions | None = None,
        transforms: Mapping[str, TransformOptions] | None = None,
        shown_figures: Mapping[str, str] | None = None,
    ) -> None:
        self._log = log
        self._metrics = metrics
        self._evaluation = self.evaluation_times = evaluation or RecommendationEvaluationOptions()
        self._deduplication = deduplication or DeduplicationOptions()
        self._transforms = transforms or {}
        self._loss = loss
        self._label_kind = log.manifest.label_kind
        self.shown_figures = shown_figures or {}
        self.fingerprint, self.ancestors = log.fingerprint, log.manifest.ancestors
        self._check_labels(log)

    def start(self) -> None:
        """Open the training split, and those to measure on."""
        options = self.setup.options
        if not isinstance(options, TrainingOptions):
            raise RecipeError("a log is trained on with recsys.TrainingOptions, which say how it is read")
        source = self._reader(
            self._log,
            "train",
            batch_size=options.batch_size,
            shuffle=options.shuffle,
            shuffle_rows=options.shuffle_rows,
            seed=self.setup.seed,
        )
        evaluator = self._evaluator_of(self._log)
        self._use(source, evaluator)
        self._measures_labels = not self._metrics and bool(evaluator.splits)
        super().start()

    def opening_lines(self) -> Sequence[str]:
        """What the model does not use of the log."""
        weighted = [feature.name for feature in self._log.features if feature.weighted]
        if not weighted or any(tables.has_weights for tables in collections_of(self.setup.model)):
            return ()
        return [
            f"ids of {', '.join(weighted)} have weights, which no collection of the model takes (is_weighted = True)"
        ]

    def settings(self) -> dict[str, Any]:
        """See `Task.settings`."""
        return {"transforms": {name: training.options_set(options) for name, options in self._transforms.items()}}

    def evaluate(
        self, splits: Sequence[str] = ("validation", "test"), *, log: "LogStore | None" = None
    ) -> dict[str, dict[str, float]]:
        """Measure. Collective.

        Args:
            splits: validation or test.
            log: another log than that of the task, prepared by `windrow.recsys.log.prepare.prepare_rows`: "test" is all
                of it.

        Raises:
            DataError: it has no labels, or other features.
        """
        if log is None:
            return super().evaluate(splits)
        self._check_alike(log)
        self._check_labels(log)
        found = self._evaluator_of(log).evaluate()
        return self.setup.world.broadcast_object(found, root=0, stage="evaluation")

    @torch.no_grad()
    def predict(self, split: str | None = None, *, log: "LogStore | None" = None) -> Tensor:
        """Outputs for samples, in the order of their log. Collective.

        Args:
            split: None: test.
            log: another log than that of the task, prepared by `windrow.recsys.log.prepare.prepare_rows`.

        Returns:
            [n], or [n, L] of several labels, float32 on the CPU of every rank: logits of binary labels.
        """
        log, name = log or self._log, split or "test"
        self._check_alike(log)
        if name not in log.splits:
            raise RecipeError(f"there is no split {name!r}: choose from {', '.join(log.splits)}")
        world = self.setup.world
        outputs: list[Tensor] = []
        numbers: list[Tensor] = []
        source = self._reader(log, name, batch_size=self._evaluation.batch_size, shuffle="none")
        for batch, output in self._model.outputs(source, self.setup.device):
            outputs.append(output)
            numbers.append(batch.row_ids)
        everything, order = (
            torch.cat(world.all_gather(torch.cat(own), stage="predictions")) for own in (outputs, numbers)
        )
        return everything[order.argsort()]

    def _evaluator_of(self, log: "LogStore") -> ClickEvaluator:
        sources: dict[str, BatchSource] = {
            split: self._reader(log, split, batch_size=self._evaluation.batch_size, shuffle="none")
            for split in ("validation", "test")
            if split in log.splits and log.split(split).rows
        }
        return ClickEvaluator(
            self.setup.world,
            self.setup.model,
            sources,
            metric=self._evaluation.metric,
            metrics=self._metrics,
            labels=self._log.labels,
            label_kind=self._label_kind,
            device=self.setup.device,
        )

    def _reader(self, log: "LogStore", split: str, **options: Any) -> BatchReader:
        world, training = self.setup.world, self.setup.options
        assert isinstance(training, TrainingOptions)
        return BatchReader(
            log,
            split,
            rank=world.rank,
            size=world.size,
            reader_shards=training.reader_shards,
            groups=self._deduplication.read_groups(),
            transforms=Transforms(self._transforms, log.features, log.dense) if self._transforms else None,
            transform_once=self._deduplication.transform,
            memory_bytes=training.reader_memory_bytes,
            **options,
        )

    def _check_alike(self, log: "LogStore") -> None:
        """Refuse a log that was not mapped as the one that is trained on."""
        for what, mine, other in (
            ("features", *([(feature.name, feature.rows) for feature in one.features] for one in (self._log, log))),
            ("dense columns", self._log.dense, log.dense),
        ):
            if mine != other:
                raise DataError(
                    f"{log.path} has other {what} than {self._log.path}, which the model learns from: prepare its "
                    "samples by recsys.prepare_rows, or windrow predict --log"
                )

    def _check_labels(self, log: "LogStore") -> None:
        if not log.labels:
            raise DataError(f"{log.path} has no labels: the files that it was prepared from lack their columns")
        for split in ("validation", "test"):
            if split in log.splits and not self._metrics:
                entry = log.split(split)
                for positives in entry.positives:
                    check_split_can_be_scored(split, entry.rows, positives)

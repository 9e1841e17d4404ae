"""A recipe for a log of a user's own: what each column is, and settings by the number of samples.

Columns are told apart by name, type and values, over the first rows of each file::

    label      --label; else a name such as click or rating; else the only column of 0 and 1
    time       dates; text of dates; whole numbers of a name such as timestamp
    session    a name such as session_id
    dense      numbers with a fraction; whole numbers of many values that are not called as ids are
    sparse     text, other whole numbers, lists; text of several values with one mark between them
    left out   one value only; another value in every row; other labels; what no reader takes
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from windrow.comm.errors import DataError
from windrow.launch.log_sample import LogColumn, LogSample, log_format, read_sample
from windrow.launch.starter_recipe import RecipeText, Starter, relative_to_recipe
from windrow.recsys.batches.interactions import read_interactions
from windrow.recsys.log.files import resolve_files
from windrow.recsys.log.options import RESERVED_NAMES, LogFormat

__all__ = ["log_recipe"]

LABELS = (
    "label", "labels", "target", "click", "clicked", "is_click", "is_clicked", "clk", "y", "conversion", "converted",
    "is_conversion", "purchase", "purchased", "bought", "is_purchase", "like", "liked", "is_like", "is_attributed",
    "is_installed", "response", "outcome", "rating", "score",
)  # fmt: skip
"""Names of labels, the likeliest first."""
TIMES = {"time", "timestamp", "ts", "date", "datetime", "unixtime", "when"}
"""Last words of names of times; only where a column is whole numbers."""
SESSIONS = {"session", "session_id", "sessionid", "sess_id", "visit", "visit_id"}
USERS = ("user", "user_id", "userid", "uid", "customer_id", "member_id")
ITEMS = ("item", "item_id", "itemid", "iid", "product_id", "movie_id", "sku")
ID_WORDS = {
    "id", "ids", "uid", "user", "item", "product", "sku", "ad", "ads", "advertiser", "campaign", "category", "cat",
    "c", "brand", "shop", "store", "seller", "page", "zip", "postcode", "code", "type", "device", "country", "city",
    "region", "hash", "segment", "carrier", "cell", "cohort", "group", "cluster", "language", "lang", "app", "site",
    "domain", "query", "movie", "video", "article", "author", "artist", "album", "track", "genre", "tag", "session",
    "field", "slot", "weekday", "hour", "month", "channel", "browser", "os",
}  # fmt: skip
"""Words in names of columns whose whole numbers are no quantities."""
SPLIT_WORDS = {"train": 0, "training": 0, "dev": 1, "val": 1, "valid": 1, "validation": 1, "test": 2}
"""Words in names of files that are splits already."""

MOST_CATEGORIES = 32
"""Whole numbers of so few values are categories, whatever they are called."""
ROWS_PER_CATEGORY = 100
"""So are those that come again so often: enough samples to learn each by itself."""
LARGEST_QUANTITY = 1 << 31
"""Whole numbers beyond are hashes."""
UNIQUE_SHARE = 0.95
"""A column with another value in nearly every row tells nothing of others."""
MOST_IN_LIST = 100
LARGEST_VOCABULARY = 10_000_000
"""Beyond, values share rows by a hash: a vocabulary has to be sorted and kept."""
RARE_FROM_SAMPLES = 1_000_000
"""From so many samples on, values need several of them to get a row."""
LARGE_LOG = 1_000_000
"""Training samples from which on larger layers have enough to learn from, and one epoch nearly is."""

VALIDATION_SHARES = (0.1, 0.2, 0.5)
"""Of pairs of users and items: the first one that leaves at least one user something to find."""

ROW_NUMBER = re.compile(r"unnamed.*|index|row|row_?id|row_?number", re.IGNORECASE)


def log_recipe(paths: Sequence[Path], out: Path, *, labels: Sequence[str] = ()) -> Starter:
    """Look at a log and write a recipe for it.

    Args:
        paths: its files or patterns.
        out: file that the recipe will stand in; it is not written.
        labels: columns of labels; none: found by name and values.

    Raises:
        DataError: the files cannot be understood; the message lists what was found and names the option that helps.
    """
    files = resolve_files([path.absolute() for path in paths])
    form = log_format(files)
    if form == "interactions":
        return _interactions_recipe(files, out, "", "")
    sample = read_sample(form, files)
    chosen = _labels(sample, labels, form)
    if not chosen:
        user, item = (_named(sample, names) for names in (USERS, ITEMS))
        return _interactions_recipe(files, out, user, item)
    return _LogWriter(files, form, sample, chosen, out).write()


def _labels(sample: LogSample, given: Sequence[str], form: LogFormat) -> tuple[str, ...]:
    """Columns of labels; none for pairs of users and items."""
    columns = sample.columns
    for name in given:
        if name not in columns:
            raise DataError(f"--label {name}: there is no such column. Columns: {sample.listed()}")
    found = tuple(given) or (("label",) if form in ("criteo", "libfm") else ())
    if not found:
        named = [name for label in LABELS for name in columns if name.lower() == label]
        found = tuple(named[:1])
    if not found:
        candidates = [name for name, column in columns.items() if column.is_zero_or_one]
        if not candidates and _named(sample, USERS) and _named(sample, ITEMS):
            return ()
        if len(candidates) != 1:
            what = "several columns of 0 and 1" if candidates else "no column has the name of a label or holds 0 and 1"
            raise DataError(f"which column is the label? {what}. Name it by --label. Columns: {sample.listed()}")
        found = tuple(candidates)
    for name in found:
        column = columns[name]
        if column.kind not in ("whole", "fraction", "truth"):
            raise DataError(
                f"label {name!r} is {column.described()}, but a label is a number: name another column by --label, or "
                f"turn it into numbers. Columns: {sample.listed()}"
            )
        if column.empty:
            raise DataError(
                f"label {name!r} is empty in {column.empty:,} of the {column.rows:,} rows looked at: leave such rows "
                "out of the file, or name another column by --label"
            )
    return found


def _named(sample: LogSample, names: Sequence[str]) -> str:
    return next((column for name in names for column in sample.columns if column.lower() == name), "")


@dataclass(frozen=True, slots=True)
class _Feature:
    """A sparse feature: its column, and what to say of it."""

    name: str
    column: LogColumn
    values: Mapping[str, Any]
    why: str


class _LogWriter:
    """Decides on the columns that are no labels, and writes."""

    def __init__(
        self, files: Sequence[Path], form: LogFormat, sample: LogSample, labels: Sequence[str], out: Path
    ) -> None:
        self._files = files
        self._form = form
        self._sample = sample
        self._labels = labels
        self._out = out
        self._left_out: dict[str, str] = {}
        self._time = self._session = self._weight = ""
        rest = [column for name, column in sample.columns.items() if name not in labels]
        rest = [column for column in rest if not self._is_role(column)]
        self._dense: list[str] = []
        self._features: list[_Feature] = []
        for column in rest:
            self._place(column)
        if not self._features:
            raise DataError(
                "no column could become a sparse feature (text, whole numbers of few values, or lists), and models "
                f"need at least one. Columns: {sample.listed()}"
            )

    def _is_role(self, column: LogColumn) -> bool:
        """Whether a column says when, in which session, or how much a sample counts."""
        if self._form in ("criteo", "libfm"):
            return False
        name, words = column.name, _words(column.name)
        if not self._time and not column.empty and column.distinct >= MOST_CATEGORIES:
            named = bool(words) and (words[-1] in TIMES or "".join(words) in TIMES or words[-1] == "at")
            if column.kind == "time" or (column.kind == "whole" and named):
                self._time = name
                return True
        if not self._session and not column.empty and name.lower() in SESSIONS and column.kind in ("whole", "text"):
            self._session = name
            return True
        if name == "sample_weight" and not column.empty and column.kind in ("whole", "fraction"):
            self._weight = name
            return column.range[0] >= 0
        return False

    def _place(self, column: LogColumn) -> None:
        """Make a column a dense one, a sparse feature, or leave it out."""
        name = column.name
        present = column.rows - column.empty
        if self._form not in ("criteo", "libfm"):
            if name.lower() in LABELS and column.kind in ("whole", "fraction", "truth"):
                self._left_out[name] = "called as labels are, which a model must not see"
                return
            if column.kind == "time":
                self._left_out[name] = "dates and times"
                return
            unique = column.kind in ("whole", "text") and column.distinct >= UNIQUE_SHARE * present and present > 100
            if ROW_NUMBER.fullmatch(name) or (unique and (column.kind == "text" or _is_called_id(name))):
                self._left_out[name] = "another value in nearly every row"
                return
        if column.distinct < 2 and column.kind != "lists":
            self._left_out[name] = "one value only" if column.distinct else "no values"
        elif self._is_dense(column):
            self._dense.append(name)
        elif column.kind in ("whole", "text", "truth", "lists"):
            self._features.append(self._feature(column))
        else:
            self._left_out[name] = f"no reader takes {column.kind}"

    def _is_dense(self, column: LogColumn) -> bool:
        if self._form == "criteo":
            return column.name.startswith("I")
        if column.kind != "whole" or self._form == "libfm":
            return column.kind == "fraction"
        low, high = column.range
        if low < -1:
            return True
        few = column.distinct <= MOST_CATEGORIES or column.rows >= ROWS_PER_CATEGORY * column.distinct
        return not few and high < LARGEST_QUANTITY and not _is_called_id(column.name)

    def _feature(self, column: LogColumn) -> _Feature:
        values: dict[str, Any] = {}
        safe = re.sub(r"[./\\\0]", "_", column.name) or "feature"
        taken = {*RESERVED_NAMES, *(feature.name.casefold() for feature in self._features)}
        while safe.casefold() in taken:
            safe += "_id"
        if safe != column.name:
            values["column"] = column.name
        distinct = column.distinct_in(self._sample.factor)
        why = column.described()
        if distinct > LARGEST_VOCABULARY:
            values |= {"ids": "hash", "rows": 1 << (distinct - 1).bit_length()}
            why += f"; about {distinct:,} in all: rows are shared by a hash"
        elif self._sample.log_rows >= RARE_FROM_SAMPLES:
            values["min_count"] = 5
        if column.kind == "lists":
            values["multi_hot"] = True
            longest = int(column.lengths.max(initial=1))
            if longest > MOST_IN_LIST:
                values["max_length"] = MOST_IN_LIST
            if column.separator and column.separator != "|":
                values["separator"] = column.separator
            weights = self._weights_of(column)
            if weights:
                values["weights"] = weights
        return _Feature(safe, column, values, why)

    def _weights_of(self, column: LogColumn) -> str:
        """The column of weights of a column of lists."""
        if self._form == "libfm":
            ones = self._sample.columns["values"].values
            return "" if set(ones.unique().to_pylist()) == {1.0} else "values"
        name = f"{column.name}_weights"
        found = self._sample.columns.get(name)
        alike = found is not None and found.kind == "numbers" and np.array_equal(found.lengths, column.lengths)
        return name if alike else ""

    @property
    def _is_binary(self) -> bool:
        allowed = {-1, 0, 1} if self._form == "libfm" else {0, 1}
        return all(set(self._sample.columns[name].values.unique().to_pylist()) <= allowed for name in self._labels)

    def write(self) -> Starter:
        """The recipe."""
        sample, out = self._sample, self._out
        for feature in self._features:
            self._left_out.pop(feature.values.get("weights", ""), None)
        settings = _settings(sample.log_rows)
        about = f"{sample.log_rows:,} samples" if sample.factor == 1 else f"about {sample.log_rows:,} samples"
        text = RecipeText()
        text.comment(
            f"{', '.join(path.name for path in self._files[:3])}{' ...' if len(self._files) > 3 else ''}: {about}, as "
            "windrow init found them.",
            "",
            f"  windrow prepare {out}",
            f"  mpirun -n 2 windrow train {out}",
            "",
        )
        text.value("store", f"stores/{out.stem}", "folder that windrow prepare writes, from this file's folder")
        split, files = self._split()
        self._write_log(text, files)
        text.section("log.features", "Sparse features: each value gets a row of a table of embeddings.")
        for feature in self._features:
            text.value(feature.name, feature.values, feature.why)
        self._write_alternatives(text)
        text.section("split", "Which samples train, choose the best epoch, and are measured at the end.")
        for key, value, why in split:
            text.value(key, value, why)
        self._write_learning(text, settings, about)
        return Starter(
            text=str(text),
            understood=self._understood(about, split),
            commands=(f"windrow prepare {out}", f"mpirun -n 2 windrow train {out}"),
        )

    def _write_log(self, text: RecipeText, files: Sequence[Path]) -> None:
        sample = self._sample
        text.section("log", "Where the log is, and what its columns are.")
        text.value("paths", [relative_to_recipe(path, self._out) for path in files])
        text.value("format", self._form)
        if self._form not in ("criteo", "libfm") or not self._is_binary:
            label = self._labels[0] if len(self._labels) == 1 else list(self._labels)
            text.value("label", label, "; ".join(sample.columns[name].described() for name in self._labels))
            others = [name for name in self._left_out if name.lower() in LABELS]
            if others:
                text.alternative("label", [*self._labels, *others], "several labels, one output each")
        if not self._is_binary:
            text.value("label_kind", "real", "learnt by squared error; 0 and 1 alone would be learnt as clicks")
        if self._weight:
            text.value("sample_weight", self._weight, "what the loss of a sample is multiplied by")
        if self._dense:
            text.value("dense", self._dense)
            transform, why, other, otherwise = self._dense_transform()
            text.value("dense_transform", transform, why)
            text.alternative("dense_transform", other, otherwise)
        if self._time:
            text.value("time", self._time, sample.columns[self._time].described())
        if self._session:
            text.value("session", self._session, sample.columns[self._session].described())
        used = {*self._labels, *self._dense, *(feature.column.name for feature in self._features)}
        used |= {self._time, self._session, self._weight}
        optional = [name for name in sample.optional if name in used]
        if optional:
            text.value("optional", optional, "some files lack them")
        for name, why in self._left_out.items():
            text.comment(f"left out: {name} ({why})")

    def _dense_transform(self) -> tuple[str, str, str, str]:
        """Skewed counts by their logarithm, all else by mean and deviation; and the other way."""
        skewed = 0
        for name in self._dense:
            values = self._sample.columns[name].values.to_numpy(zero_copy_only=False)
            low, middle, high = np.quantile(values, (0.01, 0.5, 0.99))
            skewed += bool(low >= -1 and high > 10 * max(middle, 1))
        if 2 * skewed >= len(self._dense):
            return "log1p", "log(1 + x): counts that span decades", "standard", "mean 0 and deviation 1"
        return "standard", "mean 0 and deviation 1", "log1p", "log(1 + x), for counts that span decades"

    def _write_alternatives(self, text: RecipeText) -> None:
        """What one may want to do about the feature of the most values."""
        largest = max(self._features, key=lambda feature: feature.column.distinct)
        if "ids" not in largest.values:
            rows = 1 << max(largest.column.distinct_in(self._sample.factor), 2).bit_length()
            hashed = {"ids": "hash", "rows": rows}
            rare = {"min_count": 2 * largest.values.get("min_count", 1)}
            text.alternative(largest.name, {**largest.values, **rare}, "rare values share a row with unseen ones")
            text.alternative(largest.name, {**largest.values, **hashed}, "new values every day: rows by a hash")

    def _split(self) -> tuple[list[tuple[str, Any, str]], Sequence[Path]]:
        """Keys of the section, and the files of [log]."""
        by_name: tuple[list[Path], list[Path], list[Path]] = ([], [], [])
        for path in self._files:
            found = {SPLIT_WORDS[word] for word in _words(path.name) if word in SPLIT_WORDS}
            if len(found) == 1:
                by_name[found.pop()].append(path)
        if by_name[0] and by_name[1] and sum(map(len, by_name)) == len(self._files):
            rows: list[tuple[str, Any, str]] = [("by", "files", "as the names of the files say")]
            for key, paths in zip(("validation_paths", "test_paths"), by_name[1:], strict=True):
                if paths:
                    rows.append((key, [relative_to_recipe(path, self._out) for path in paths], ""))
            return rows, by_name[0]
        fractions = ("fractions", [0.8, 0.1, 0.1], "train, validation, test")
        if self._time:
            why = "earlier samples train, later ones are measured, as in use; hash: at random"
            return [("by", "time", why), fractions], self._files
        if self._session and self._sample.columns[self._session].distinct >= MOST_CATEGORIES:
            why = "samples of a session stay together"
            return [("by", "hash", "at random"), fractions, ("column", self._session, why)], self._files
        return [("by", "hash", "at random; time: the last samples measure, needs log.time"), fractions], self._files

    def _write_learning(self, text: RecipeText, settings: "_Settings", about: str) -> None:
        text.section("tables", "Embedding tables: a row of so many numbers for each value of a sparse feature.")
        text.value("dim", 64, "columns; 16 or 32 take less memory and time")
        text.value(
            "optimizer", settings.table_optimizer, "adagrad: a step size for each number, rowwise_: for each row"
        )
        text.value("learning_rate", 0.05, "of the tables alone")
        text.value("initial_scale", 0.01, "rare values begin close to nothing")
        text.alternative("weight_decay", 1e-5, "where the loss falls and validation gets worse")
        text.section("model", "What is computed from embeddings and dense values.")
        text.value("kind", "dlrm", "dot products of embeddings")
        if self._dense:
            text.value("bottom", list(settings.bottom), "layers for dense values")
        text.value("top", list(settings.top), "layers from dot products to the result")
        text.value("embeddings_in_top", value=True, why="they see the embeddings too")
        text.value("dropout", settings.dropout, "0.5 for less learning by heart, 0.0 for millions of samples")
        text.alternative("kind", "dcn", "a cross network; then deep = [...] in place of bottom, top, embeddings_in_top")
        text.section("training", "How weights are learnt.")
        text.value("epochs", settings.epochs, "at most: [evaluation] ends it before")
        text.value("batch_size", settings.batch_size, f"over all ranks, for {about}; more for speed")
        text.value("learning_rate", 0.001, "of the layers; with a larger batch_size try more")
        text.section("evaluation", "When it is measured, and when it ends.")
        text.value(
            "patience_epochs",
            settings.patience_epochs,
            "end after so many epochs without a better validation; 0: never",
        )
        if self._is_binary:
            text.alternative("metric", "normalised_entropy", "instead of auc: for probabilities that are right in size")

    def _understood(self, about: str, split: Sequence[tuple[str, Any, str]]) -> tuple[str, ...]:
        kind = "0 and 1" if self._is_binary else "real"
        lines = [
            f"{about}, format {self._form}",
            f"label: {', '.join(self._labels)} ({kind})",
            f"split: by {split[0][1]}" + (f" of {self._time}" if split[0][1] == "time" else ""),
        ]
        if self._session:
            lines.append(f"session: {self._session}")
        if self._dense:
            lines.append(f"dense: {', '.join(self._dense)}")
        lines.append(f"sparse: {', '.join(feature.name for feature in self._features)}")
        return (*lines, *(f"left out: {name} ({why})" for name, why in self._left_out.items()))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Settings:
    """What depends on the number of samples: see the recipe's comments for the meaning."""

    table_optimizer: str
    bottom: tuple[int, ...]
    top: tuple[int, ...]
    dropout: float
    epochs: int
    batch_size: int
    patience_epochs: int


def _settings(samples: int) -> _Settings:
    """Settings for a log of so many samples.

    Test AUC at the best epoch of validation; 64 columns, Adagrad at 0.05, values that begin within 0.01, embeddings in
    the top layers, dropout 0.2, if nothing else is said. Criteo: 8,000 lines of its log, mean of 3 seeds; frappe:
    86,582 samples of 10 fields; sessions: 50,000 samples of ``windrow generate-log``::

                                                      Criteo   frappe   sessions
        defaults of the options (one epoch of 2048)   .679     .937     -
        the same, until validation gets no better     .729     .940     -
        32 steps an epoch                             .741     .964     .770
        the same, Adagrad at 0.1                      .739     .963     .745
                                  and 16 columns      .733     .957     -
                                  and 128 steps       .734     .965     -
        the same, Adagrad at 0.02                     .742     -        .773
                                  and 128 steps       .741     -        .780
        32 steps, values of 10 samples or more only   .741     -        -
    """
    train = 0.8 * samples
    is_small = train < LARGE_LOG
    return _Settings(
        # A log of many samples has large tables, and adagrad doubles them.
        table_optimizer="adagrad" if is_small else "rowwise_adagrad",
        bottom=(128,) if is_small else (512, 256),
        top=(128, 64) if is_small else (512, 256),
        dropout=0.2 if is_small else 0.0,
        epochs=20 if is_small else 5,
        batch_size=_batch_size(train),
        patience_epochs=2 if is_small else 1,
    )


def _batch_size(train: float) -> int:
    """About 64 steps an epoch, of 64 to 2048 samples."""
    return int(2 ** np.clip(round(np.log2(max(train, 1) / 64)), 6, 11))


def _words(name: str) -> list[str]:
    """The words of a name, in lower case, without digits."""
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)]


def _is_called_id(name: str) -> bool:
    return any(word in ID_WORDS for word in _words(name))


def _interactions_recipe(files: Sequence[Path], out: Path, user: str, item: str) -> Starter:
    """A recipe for two towers; the columns are empty for npz files."""
    if len(files) > 1:
        raise DataError(
            f"{len(files)} files of users and items without labels are read one at a time: put them into one, or name "
            "a label by --label"
        )
    share = VALIDATION_SHARES[0]
    try:
        for share in VALIDATION_SHARES:
            found = read_interactions(files[0], user_column=user, item_column=item, validation_fraction=share, seed=0)
            if len(found.validation.values):
                break
    except DataError as error:
        raise DataError(
            f"{error}. (No label was found, so this was taken for pairs of users and items, each pair once; where a "
            "column is a label, name it by --label)"
        ) from error
    pairs = sum(len(lists.values) for lists in found.splits().values())
    about = f"{found.num_users:,} users, {found.num_items:,} items, {pairs:,} interactions"
    text = RecipeText()
    text.comment(f"{files[0].name}: {about}, as windrow init found them.", "", f"  mpirun -n 2 windrow train {out}", "")
    text.section("log", "Which user took which item, and nothing else: every item not taken counts against.")
    text.value("paths", [relative_to_recipe(files[0], out)])
    text.value("format", "interactions")
    text.section("interactions", "How pairs become minibatches.")
    if user:
        text.value("user_column", user)
        text.value("item_column", item)
    text.value("validation_fraction", share, "of each user's items, to choose the best epoch by")
    text.value("num_negatives", min(512, found.num_items), "items that each positive is told apart from")
    text.alternative("max_history", 20, "items of a user's past that are looked at: 50; fewer are quicker")
    if user:
        text.section("split", "A file of later interactions with the same columns would be the test split.")
        text.alternative("by", "files", "and then")
        text.alternative("test_paths", ["later.parquet"], "measured at the end")
    text.section("tables", "Embedding tables: a row of so many numbers for each user and each item.")
    text.value("dim", 64, "more for more interactions, and slower")
    text.value("optimizer", "adam", "adagrad: without moving every row in every step")
    text.value("learning_rate", 0.006, "of the tables")
    text.section("model", "One vector for a user, one for an item; how well they fit is their product.")
    text.value("kind", "two_tower")
    text.alternative("temperature", 0.2, "0.1 by default: the smaller, the more the hardest negatives count")
    text.section("training", "How weights are learnt.")
    text.value("epochs", 20, "at most: [evaluation] ends it before")
    text.value("batch_size", _batch_size(pairs / 3), f"over all ranks, for {pairs:,} interactions; more for speed")
    text.value("learning_rate", 0.006, "of the towers' layers")
    text.section("evaluation", "When it is measured, and when it ends.")
    text.value("k", 20, "items recommended to a user, in recall@k and ndcg@k")
    text.value("patience_epochs", 3, "end after so many epochs without a better validation; 0: never")
    return Starter(
        text=str(text),
        understood=(about, "no label: two towers learn which items go with which users"),
        commands=(f"mpirun -n 2 windrow train {out}",),
    )

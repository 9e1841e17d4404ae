"""A recipe for a log of a user's own: what each column is, and settings by the number of samples.

Columns are told apart by name, type and values, over the first rows::

    label      --label; else a name such as click or rating; else the only column of 0 and 1
    time       dates; text of dates; whole numbers of a name such as timestamp
    session    a name such as session_id
    dense      numbers with a fraction; whole numbers of many values that are not called as ids are
    sparse     text, other whole numbers, lists; text of several values with one mark between them
    left out   one value only; another value in every row; other labels; what no reader takes
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from windrow.comm.errors import DataError
from windrow.launch.log_sample import LogColumn, LogSample, log_format, read_sample
from windrow.launch.starter_recipe import Starter, column_named, entries, entry, learning, relative_to_recipe, starter
from windrow.recsys.batches.interactions import read_interactions
from windrow.recsys.log.files import resolve_files
from windrow.recsys.log.options import RESERVED_NAMES

__all__ = ["log_recipe"]

LABELS = (
    "label", "labels", "target", "click", "clicked", "is_click", "is_clicked", "clk", "y", "conversion", "converted",
    "is_conversion", "purchase", "purchased", "bought", "is_purchase", "like", "liked", "is_like", "is_attributed",
    "is_installed", "response", "outcome", "rating", "score",
)  # fmt: skip
"""Names of labels, the likeliest first."""
TIMES = {"time", "timestamp", "ts", "date", "datetime", "unixtime", "when", "at"}
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
RARE_FROM_SAMPLES = 1_000_000
"""From so many samples on, values need several of them to get a row."""
LARGE_LOG = 1_000_000
"""Training samples from which on larger layers have enough to learn from, and one epoch nearly is."""

VALIDATION_SHARES = (0.1, 0.2, 0.5)
"""Of pairs of users and items: the first one that leaves at least one user something to find."""

ROW_NUMBER = re.compile(r"unnamed.*|index|row|row_?id|row_?number", re.IGNORECASE)
NUMBERS = ("whole", "fraction", "truth")


@dataclass(slots=True)
class _Roles:
    """What columns are for."""

    labels: tuple[str, ...]
    time: str = ""
    session: str = ""
    sample_weight: str = ""
    dense: list[str] = field(default_factory=list)
    features: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Settings of each sparse feature."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Why."""


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
    chosen = _labels(sample, labels)
    if not chosen:
        return _interactions_recipe(
            files, out, column_named(sample.columns, USERS), column_named(sample.columns, ITEMS)
        )
    return _click_recipe(files, out, sample, _roles(sample, chosen))


def _labels(sample: LogSample, given: Sequence[str]) -> tuple[str, ...]:
    """Columns of labels; none for pairs of users and items."""
    columns = sample.columns
    for name in given:
        if name not in columns:
            raise DataError(f"--label {name}: there is no such column. Columns: {sample.listed()}")
    found = tuple(given) or tuple(name for name in [column_named(sample.columns, LABELS)] if name)
    if not found:
        candidates = [
            name
            for name, column in columns.items()
            if column.kind in NUMBERS and not column.empty and column.distinct == 2 and column.holds_only(0, 1)
        ]
        if not candidates and column_named(sample.columns, USERS) and column_named(sample.columns, ITEMS):
            return ()
        if len(candidates) != 1:
            what = "several columns of 0 and 1" if candidates else "no column has the name of a label or holds 0 and 1"
            raise DataError(f"which column is the label? {what}. Name it by --label. Columns: {sample.listed()}")
        found = tuple(candidates)
    for name in found:
        column = columns[name]
        if column.kind not in NUMBERS:
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


def _roles(sample: LogSample, labels: tuple[str, ...]) -> _Roles:
    """Tell apart the columns that are no labels."""
    roles = _Roles(labels)
    for name, column in sample.columns.items():
        # Columns of the other formats have no names that say anything.
        has_name = sample.form not in ("criteo", "libfm")
        role = _role(column) if has_name else ""
        if name in labels:
            continue
        if role and not getattr(roles, role):
            setattr(roles, role, name)
        elif why := _useless(column, has_name=has_name):
            roles.left_out[name] = why
        elif _is_dense(column, sample.form):
            roles.dense.append(name)
        else:
            safe = re.sub(r"[./\\\0]", "_", name) or "feature"
            while safe.casefold() in {*RESERVED_NAMES, *map(str.casefold, roles.features)}:
                safe += "_id"
            roles.features[safe] = ({} if safe == name else {"column": name}) | _feature(column, sample)
    if not roles.features:
        raise DataError(
            "no column could become a sparse feature (text, whole numbers of few values, or lists), and models "
            f"need at least one. Columns: {sample.listed()}"
        )
    for settings in roles.features.values():
        roles.left_out.pop(settings.get("weights", ""), None)
    return roles


def _role(column: LogColumn) -> str:
    """Whether a column says when, in which session, or how much a sample counts."""
    name, words = column.name, _words(column.name)
    if column.empty:
        return ""
    is_named_time = bool(words) and (words[-1] in TIMES or "".join(words) in TIMES)
    is_time = column.kind == "time" or (column.kind == "whole" and is_named_time)
    if is_time and column.distinct >= MOST_CATEGORIES:
        return "time"
    if name.lower() in SESSIONS and column.kind in ("whole", "text"):
        return "session"
    is_weight = name == "sample_weight" and column.kind in ("whole", "fraction") and column.range[0] >= 0
    return "sample_weight" if is_weight else ""


def _useless(column: LogColumn, *, has_name: bool) -> str:
    """Why a model cannot learn from a column, by its name and values."""
    name, present = column.name, column.rows - column.empty
    if has_name and name.lower() in LABELS and column.kind in NUMBERS:
        return "called as labels are, which a model must not see"
    if has_name and column.kind == "time":
        return "dates and times"
    unique = column.kind in ("whole", "text") and column.distinct >= UNIQUE_SHARE * present and present > 100
    if has_name and (ROW_NUMBER.fullmatch(name) or (unique and (column.kind == "text" or _is_called_id(name)))):
        return "another value in nearly every row"
    if column.distinct < 2 and column.kind != "lists":
        return "one value only" if column.distinct else "no values"
    return "" if column.kind in ("whole", "fraction", "text", "truth", "lists") else f"no reader takes {column.kind}"


def _is_dense(column: LogColumn, form: str) -> bool:
    if form == "criteo":
        return column.name.startswith("I")
    if column.kind != "whole" or form == "libfm":
        return column.kind == "fraction"
    low, high = column.range
    if low < -1:
        return True
    few = column.distinct <= MOST_CATEGORIES or column.rows >= ROWS_PER_CATEGORY * column.distinct
    return not few and high < LARGEST_QUANTITY and not _is_called_id(column.name)


def _feature(column: LogColumn, sample: LogSample) -> dict[str, Any]:
    """Settings of a sparse feature."""
    settings: dict[str, Any] = {"min_count": 5} if sample.log_rows >= RARE_FROM_SAMPLES else {}
    if column.kind == "lists":
        settings["multi_hot"] = True
        if column.lengths.max(initial=1) > MOST_IN_LIST:
            settings["max_length"] = MOST_IN_LIST
        if column.separator and column.separator != "|":
            settings["separator"] = column.separator
        weights = sample.columns.get("values" if sample.form == "libfm" else f"{column.name}_weights")
        alike = weights is not None and weights.kind == "numbers" and np.array_equal(weights.lengths, column.lengths)
        if weights is not None and alike and not weights.holds_only(1.0):
            settings["weights"] = weights.name
    return settings


def _words(name: str) -> list[str]:
    """The words of a name, in lower case, without digits."""
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)]


def _is_called_id(name: str) -> bool:
    return not ID_WORDS.isdisjoint(_words(name))


def _click_recipe(files: Sequence[Path], out: Path, sample: LogSample, roles: _Roles) -> Starter:
    allowed = (-1, 0, 1) if sample.form == "libfm" else (0, 1)
    is_binary = all(sample.columns[name].holds_only(*allowed) for name in roles.labels)
    training_files, split = _split(files, out, sample, roles)
    about = f"about {sample.log_rows:,} samples"
    commands = (f"windrow prepare {out}", f"mpirun -n 2 windrow train {out}")
    features = "".join(
        entry(name, settings, sample.columns[settings.get("column", name)].described())
        for name, settings in roles.features.items()
    )
    train = 0.8 * sample.log_rows
    sizes = SMALL if train < LARGE_LOG else LARGE
    sections = [
        entry("store", f"stores/{out.stem}", "folder that windrow prepare writes, from this file's folder"),
        _log(training_files, out, sample, roles, is_binary=is_binary),
        FEATURES + features,
        "# Which samples train, choose the best epoch, and are measured at the end.\n[split]\n" + split,
        MODEL.format(
            bottom=entry("bottom", sizes["bottom"], "layers for dense values") if roles.dense else "",
            top=sizes["top"],
            optimizer=sizes["optimizer"],
            dropout=sizes["dropout"],
        ),
        learning(
            f"for {about}; more for speed",
            epochs=sizes["epochs"],
            batch_size=_batch_size(train),
            rate=0.001,
            patience=sizes["patience"],
        ),
    ]
    if is_binary:
        sections[-1] += '# metric = "normalised_entropy"  # instead of auc: for probabilities that are right in size\n'
    understood = {
        "label": f"{', '.join(roles.labels)} ({'0 and 1' if is_binary else 'real'})",
        "split": "by " + split.split('"')[1],
        "session": roles.session,
        "dense": ", ".join(roles.dense),
        "sparse": ", ".join(roles.features),
    }
    lines = [
        f"{about}, format {sample.form}",
        *(f"{what}: {found}" for what, found in understood.items() if found),
        *(f"left out: {name} ({why})" for name, why in roles.left_out.items()),
    ]
    names = ", ".join(path.name for path in files[:3]) + " ..." * (len(files) > 3)
    return starter(names, about, lines, commands, *sections)


def _log(files: Sequence[Path], out: Path, sample: LogSample, roles: _Roles, *, is_binary: bool) -> str:
    """The section [log]."""
    text = "# Where the log is, and what its columns are.\n[log]\n"
    text += entries({"paths": [relative_to_recipe(path, out) for path in files], "format": sample.form})
    if sample.form not in ("criteo", "libfm") or not is_binary:
        label = roles.labels[0] if len(roles.labels) == 1 else roles.labels
        text += entry("label", label, "; ".join(sample.columns[name].described() for name in roles.labels))
    if not is_binary:
        text += entry("label_kind", "real", "learnt by squared error; 0 and 1 alone would be learnt as clicks")
    if roles.sample_weight:
        text += entry("sample_weight", roles.sample_weight, "what the loss of a sample is multiplied by")
    if roles.dense:
        transform = "log1p" if _are_skewed([sample.columns[name] for name in roles.dense]) else "standard"
        why = "standard: mean 0 and deviation 1; log1p: log(1 + x), for counts that span decades"
        text += entry("dense", roles.dense) + entry("dense_transform", transform, why)
    for key, name in (("time", roles.time), ("session", roles.session)):
        if name:
            text += entry(key, name, sample.columns[name].described())
    return text + "".join(f"# left out: {name!r} ({why})\n" for name, why in roles.left_out.items())


def _are_skewed(columns: Sequence[LogColumn]) -> bool:
    """Whether most of the columns are counts that span decades."""
    skewed = 0
    for column in columns:
        low, middle, high = np.quantile(column.values.to_numpy(zero_copy_only=False), (0.01, 0.5, 0.99))
        skewed += bool(low >= -1 and high > 10 * max(middle, 1))
    return 2 * skewed >= len(columns)


def _split(files: Sequence[Path], out: Path, sample: LogSample, roles: _Roles) -> tuple[Sequence[Path], str]:
    """The files of [log], and the section [split]."""
    by_name: tuple[list[Path], list[Path], list[Path]] = ([], [], [])
    for path in files:
        found = {SPLIT_WORDS[word] for word in _words(path.name) if word in SPLIT_WORDS}
        if len(found) == 1:
            by_name[found.pop()].append(path)
    if by_name[0] and by_name[1] and sum(map(len, by_name)) == len(files):
        text = entry("by", "files", "as the names of the files say")
        for key, paths in zip(("validation_paths", "test_paths"), by_name[1:], strict=True):
            if paths:
                text += entry(key, [relative_to_recipe(path, out) for path in paths])
        return by_name[0], text
    fractions = entry("fractions", [0.8, 0.1, 0.1], "train, validation, test")
    if roles.time:
        why = "earlier samples train, later ones are measured, as in use; hash: at random"
        return files, entry("by", "time", why) + fractions
    text = entry("by", "hash", "at random; time: the last samples measure, needs log.time") + fractions
    if roles.session and sample.columns[roles.session].distinct >= MOST_CATEGORIES:
        text += entry("column", roles.session, "samples of a session stay together")
    return files, text


def _batch_size(train: float) -> int:
    """About 64 steps an epoch, of 64 to 2048 samples."""
    return int(2 ** np.clip(round(np.log2(max(train, 1) / 64)), 6, 11))


# Test AUC of 8,000 lines of Criteo's log (mean of 3 seeds) and of Frappe: .741 and .964; the defaults of the options,
# which are for large logs, give .679 and .937, columns of 16 .733 and .957, Adagrad at 0.1 .739 and .963.
SMALL: dict[str, Any] = {
    "optimizer": "adagrad",
    "bottom": [128],
    "top": [128, 64],
    "dropout": 0.2,
    "epochs": 20,
    "patience": 2,
}
# A log of many samples has large tables, and adagrad doubles them.
LARGE: dict[str, Any] = {
    "optimizer": "rowwise_adagrad", "bottom": [512, 256], "top": [512, 256], "dropout": 0.0, "epochs": 5, "patience": 1
}  # fmt: skip

FEATURES = """\
# Sparse features: each value gets a row of a table of embeddings.
# With { ids = "hash", rows = 100000 } values share rows by a hash, which suits new values every day.
[log.features]
"""
MODEL = """\
# Embedding tables: a row of so many numbers for each value of a sparse feature.
[tables]
dim = 64  # columns; 16 or 32 take less memory and time
optimizer = "{optimizer}"  # adagrad: a step size for each number, rowwise_: for each row
learning_rate = 0.05  # of the tables alone
initial_scale = 0.01  # rare values begin close to nothing
# weight_decay = 1e-5  # where the loss falls and validation gets worse

# What is computed from embeddings and dense values.
[model]
kind = "dlrm"  # dot products; dcn: a cross network, with deep = [...] in place of bottom, top, embeddings_in_top
{bottom}top = {top}  # layers from dot products to the result
embeddings_in_top = true  # they see the embeddings too
dropout = {dropout}  # 0.5 for less learning by heart, 0.0 for millions of samples
"""


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
    towers = TWO_TOWERS.format(
        paths=entry("paths", [relative_to_recipe(files[0], out)]),
        columns=entries({"user_column": user, "item_column": item} if user else {}),
        share=share,
        num_negatives=min(512, found.num_items),
    )
    trained = learning("more for speed", epochs=20, batch_size=_batch_size(pairs / 3), rate=0.006, patience=3)
    trained += entry("k", 20, "items recommended to a user, in recall@k and ndcg@k")
    lines = [about, "no label: two towers learn which items go with which users"]
    return starter(files[0].name, about, lines, [f"mpirun -n 2 windrow train {out}"], towers, trained)


TWO_TOWERS = """\
# Which user took which item, and nothing else: every item not taken counts against.
[log]
{paths}format = "interactions"

# How pairs become minibatches. A file of later interactions with the same columns would be the test split:
# [split] by = "files", test_paths = ["later.parquet"].
[interactions]
{columns}validation_fraction = {share}  # of each user's items, to choose the best epoch by
num_negatives = {num_negatives}  # items that each positive is told apart from
# max_history = 20  # items of a user's past that are looked at: 50; fewer are quicker

# Embedding tables: a row of so many numbers for each user and each item.
[tables]
dim = 64  # more for more interactions, and slower
optimizer = "adam"  # adagrad: without moving every row in every step
learning_rate = 0.006  # of the tables

# One vector for a user, one for an item; how well they fit is their product.
[model]
kind = "two_tower"
# temperature = 0.2  # 0.1 by default: the smaller, the more the hardest negatives count
"""

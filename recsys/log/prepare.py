"""From a log in any format to a prepared store: in bounded memory, every step out of core, by one process or several.

files -> readers -> staged log (conforming columns, one Parquet file)
                      | sorted by time, where the split is by time and it is not; or by session, where that is asked for
                      | counted: vocabularies and dense moments, over the training split
                      v
                    samples of train, validation, test -> store

Several ranks share out the files of the log: see `windrow.recsys.log.ranks`.

There is one vocabulary for each table, which features may share. `prepare_rows` maps samples that came later by the
vocabularies of a store; a log may also continue them, see `LogOptions.vocabularies_from`.
"""

import contextlib
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windrow.comm.errors import DataError, RecipeError
from windrow.partition.atomic_writes import atomic_folder
from windrow.recsys.batches.prefetch import prefetch
from windrow.recsys.log.clustering.log_files import open_parquet
from windrow.recsys.log.conform import ColumnUse
from windrow.recsys.log.duckdb_sql import failures_explained
from windrow.recsys.log.files import check_replaceable, file_labels, repeated_files, resolve_files
from windrow.recsys.log.options import (
    SPLITS,
    FeatureOptions,
    LogOptions,
    LogSplitOptions,
    SplitName,
    parse_instant,
    split_by_time,
)
from windrow.recsys.log.ranks import Ranks
from windrow.recsys.log.readers import RawBlock, read_log
from windrow.recsys.log.sample_mapper import SampleMapper, read_vocabularies
from windrow.recsys.log.staging import Staged, StagedLog, stage, staged_columns, text_types
from windrow.recsys.log.store import (
    MANIFEST_NAME,
    ROW_GROUP_ROWS,
    VOCABULARIES,
    WEIGHTS_SUFFIX,
    FeatureEntry,
    LogManifest,
    LogStore,
    SplitEntry,
    SplitWriter,
    StoreFile,
    combined_fingerprint,
    describe_store_file,
    plain_settings,
)

if TYPE_CHECKING:
    from windrow.comm.world import World

__all__ = ["Progress", "are_text", "prepare", "prepare_log", "prepare_rows"]

Progress = Callable[[str, float], None]
"""Called with the name of a stage and the share of it that is done, 0 to 1."""

Cuts = tuple[int, int] | None
"""Times at which validation and test begin; None where the split of each row is known already."""


def prepare_log(
    store: Path,
    log: LogOptions,
    split: LogSplitOptions,
    *,
    shard: bool = False,
    cluster: bool = False,
    leave_out_repeats: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
    world: "World | None" = None,
) -> LogStore:
    """Read a log, split and map it, and write a store. Collective, with a world.

    Args:
        store: folder to write; appears whole or not at all.
        log: where the log is and how its columns become samples.
        split: which samples train, validate and test.
        shard: keep the samples of a session in one file: RecD's O1. Needs log.session.
        cluster: keep the samples of a session next to one another, in order of time, or of the log where it has no
            times: RecD's O2. Needs log.session.
        leave_out_repeats: write the ids of a feature once for each run of samples that have the same, which pays where
            samples that repeat are neighbours; reading gives the same samples.
        overwrite: replace an existing store.
        progress: told how far it is.
        world: whose ranks do it together, from files and in a folder that all of them see; arguments must agree. The
            samples and their order are those of one process. None: this process alone.

    Returns:
        The store, opened.

    Raises:
        StoreError: the store exists and is not to be overwritten, is something else than a store, or cannot be
            written.
        RecipeError: the two sections contradict each other.
        DataError: the log breaks a law; the message names file, row and cure.

    Memory: on each rank some blocks of rows, what DuckDB may hold (2 GB), and the vocabularies; where several sort also
    24 bytes for each row of a rank. Disk: the store twice over while it is written, three times while its rows are
    sorted.
    """
    _check_sections(log, split, needs_sessions="shard" if shard else "cluster" if cluster else "")
    ranks = Ranks(world, progress)
    base = None
    if log.vocabularies_from is not None:
        base = LogStore.open(log.vocabularies_from)
        _check_base(base, log)
    groups = [resolve_files(log.paths)]
    if split.by == "files":
        groups += [resolve_files(split.validation_paths), resolve_files(split.test_paths)]
    with _new_store(store, ranks, overwrite=overwrite) as (folder, work):
        columns = staged_columns(log, split, None if base is None else are_text(base))
        file = work / "staged.parquet"
        rows, in_order = ranks.settle(
            file, _stage(file, columns, groups, log, split, ranks), split, [path for group in groups for path in group]
        )
        with StagedLog(file, work, threads=ranks.threads) as staged:
            by_session = shard or cluster
            if split.by == "time" and not in_order and not by_session:
                ranks.report("sorting by time", 0.0)
                ranks.deal_by_time(staged, rows, work.parent)
                staged.sort_by_time()
            cuts = _find_cuts(staged, ranks, rows, split, in_order=in_order or not by_session)
            code = _split_code(cuts)
            shard_rows: dict[int, tuple[int, ...]] = {}
            if by_session:
                # Shards keep the order that the log would have without them: that of time where it is split by time.
                times = bool(log.time) if cluster else cuts is not None
                shard_rows = ranks.sort_by_session(staged, code, work.parent, shard=shard, cluster=cluster, times=times)
            training = "split = 0" if cuts is None else f"time < {cuts[0]}"
            vocabularies = _write_vocabularies(folder, staged, ranks, log, training, base)
            standard = log.dense if log.dense_transform == "standard" else ()
            if base is None:
                found = ranks.moments(staged.moments([f"dense.{name}" for name in standard], training))
                moments = dict(zip(standard, found.values(), strict=True))
            else:
                moments = dict(base.manifest.moments)
            mapper = SampleMapper(log, read_vocabularies(vocabularies), moments)
            repeats = [
                (feature, feature + WEIGHTS_SUFFIX if options.weights else "")
                for feature, options in log.features.items()
                if leave_out_repeats
            ]
            firsts = ranks.first_files(staged, code, shard_rows)
            writers = {
                name: SplitWriter(
                    folder,
                    name,
                    shard_rows=shard_rows.get(place, ()),
                    first_file=firsts.get(place, 0),
                    clustered=cluster,
                    repeats=repeats,
                )
                for place, name in enumerate(SPLITS)
            }
            told = ranks.everyone((_map_rows(staged.file, mapper, cuts, writers, ranks.report), mapper.figures()))
        entries = _joined([found for found, _ in told])
        for rank, (_, figures) in enumerate(told):
            if rank != ranks.rank:
                mapper.add(figures)
        _check_splits(entries, split)
        origin = {
            "log": plain_settings(log),
            "split": plain_settings(split),
            "deduplication": {"shard": shard, "cluster": cluster},
        }
        if ranks.rank == 0:
            _write_manifest(
                folder,
                log,
                mapper,
                entries,
                vocabularies,
                origin=origin,
                order="sessions" if cluster else "session shards" if shard else "log",
                ancestors=() if base is None else (base.fingerprint, *base.manifest.ancestors),
                repeats_left_out=leave_out_repeats,
            )
    return LogStore.open(store)


def prepare_rows(
    store: Path,
    paths: Sequence[Path],
    like: LogStore,
    *,
    overwrite: bool = False,
    progress: Progress | None = None,
    world: "World | None" = None,
) -> LogStore:
    """Map samples that came later, labelled or not, as the samples of another store were: to predict or to measure.

    Args:
        store: folder to write; appears whole or not at all.
        paths: files or patterns, of the format and with the columns that `like` was prepared from; labels, weights,
            times and sessions may be absent.
        like: gives rules, vocabularies and moments.
        overwrite: replace an existing store.
        progress: told how far it is.
        world: all its ranks call this: rank 0 maps the samples, the others wait, for the world's deadline at most, and
            open the store. None: one process does.

    Returns:
        The store, opened: all samples are its test split, in their order.

    Raises:
        StoreError: as of `prepare_log`; or `like` is from before stores kept their rules.
        DataError: a column is missing or a value does not fit; the message names file, row and cure.
    """
    if _is_done_by_rank_0(world):
        return LogStore.open(store)
    log = like.log_options(tuple(paths))
    files = resolve_files(log.paths)
    features = replace(log, label=(), sample_weight="", time="", session="")
    blocks = read_log(log.format, files[:1], text_types(staged_columns(features, LogSplitOptions())))
    known = set(next(iter(blocks)).columns_in_file)
    log = replace(
        features,
        label=log.labels if set(log.labels) <= known else (),
        sample_weight=log.sample_weight if log.sample_weight in known else "",
    )
    ranks = Ranks(None, progress)
    with _new_store(store, ranks, overwrite=overwrite) as (folder, work):
        staged = work / "staged.parquet"
        split = LogSplitOptions(by="files")
        columns = staged_columns(log, split, are_text(like))
        ranks.settle(staged, _stage(staged, columns, [[], [], files], log, split, ranks), split, files)
        vocabularies = {table: like.vocabulary_file(table) for table in like.vocabulary_tables}
        mapper = SampleMapper(log, read_vocabularies(vocabularies), like.manifest.moments)
        writers = {SPLITS[2]: SplitWriter(folder, SPLITS[2])}
        entries = _map_rows(staged, mapper, None, writers, ranks.report)
        _write_manifest(folder, log, mapper, entries, {}, origin={**like.manifest.origin, "log": plain_settings(log)})
    _meet(world)
    return LogStore.open(store)


def prepare(
    paths: Path | str | Sequence[Path | str],
    store: Path | str | None = None,
    *,
    label: str | Sequence[str] = "label",
    dense: str | Sequence[str] = (),
    features: str | Sequence[str] | Mapping[str, FeatureOptions],
    split: LogSplitOptions | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
    world: "World | None" = None,
    **options: Any,
) -> LogStore:
    """`prepare_log`, with what files tell by themselves left out.

    Args:
        paths: files, or patterns with * and ?.
        store: folder to write; None: ``stores/NAME`` after the first file.
        label: column, or several.
        dense: column of dense values, or several.
        features: column of ids, or several, single or lists (in Parquet), each with a vocabulary of its own; or the
            options of each feature by name.
        split: which samples train, validate and test; None: 80, 10 and 10 percent at random.
        overwrite: replace an existing store.
        progress: told how far it is.
        world: see `prepare_log`. Ranks wait for one another for the world's deadline at most: give it more where files
            are large.
        options: other fields of `windrow.recsys.log.options.LogOptions`, such as ``label_kind``, ``sample_weight``,
            ``dense_transform``, ``time``, or ``format`` where the name of the file does not tell it.

    Returns:
        The store, opened.

    Raises:
        WindrowError: as `prepare_log`.
    """
    # A file that one of them has just written is there for all then.
    _meet(world)
    if store is None:
        first = resolve_files((Path(paths if isinstance(paths, Path | str) else paths[0]).absolute(),))[0]
        store = Path("stores", first.name.split(".")[0])
    given = (paths,) if isinstance(paths, Path | str) else paths
    files = resolve_files(tuple(Path(path).absolute() for path in given))
    log_format = options.pop("format", "parquet" if files[0].suffix in (".parquet", ".pq") else "csv")
    if not isinstance(features, Mapping):
        features = (features,) if isinstance(features, str) else features
        lists = _list_columns(files[0]) if log_format == "parquet" else frozenset()
        features = {column: FeatureOptions(multi_hot=column in lists) for column in features}
    log = LogOptions(
        paths=tuple(files),
        format=log_format,
        label=label if isinstance(label, str) else tuple(label),
        dense=(dense,) if isinstance(dense, str) else tuple(dense),
        features=features,
        **options,
    )
    split = split or LogSplitOptions()
    return prepare_log(Path(store).absolute(), log, split, overwrite=overwrite, progress=progress, world=world)


@contextlib.contextmanager
def _new_store(store: Path, ranks: Ranks, *, overwrite: bool) -> Iterator[tuple[Path, Path]]:
    """A folder that becomes the store, and one in it for this rank to work in, which is gone then. Collective."""
    with contextlib.ExitStack() as end:
        made: Path | None = None
        end.enter_context(failures_explained(store, "or choose another store"))
        if ranks.rank == 0:
            check_replaceable(store, overwrite=overwrite, what="prepared log", marker=MANIFEST_NAME)
            made = end.enter_context(atomic_folder(store, overwrite=overwrite))
        folder = ranks.everyone(made)[0]
        assert folder is not None
        work = folder / "work" / str(ranks.rank)
        work.mkdir(parents=True)
        yield folder, work
        ranks.meet()
        if ranks.rank == 0:
            shutil.rmtree(folder / "work")
    ranks.meet()


def _is_done_by_rank_0(world: "World | None") -> bool:
    """Whether this is another rank, which has waited for rank 0."""
    if world is None or world.rank == 0:
        return False
    _meet(world)
    return True


def _meet(world: "World | None") -> None:
    if world is not None:
        world.barrier(stage="preparing the log")


def _list_columns(path: Path) -> frozenset[str]:
    from pyarrow import types

    tests = (types.is_list, types.is_large_list, types.is_fixed_size_list)
    with open_parquet(path) as file:
        return frozenset(field.name for field in file.schema_arrow if any(test(field.type) for test in tests))


def _check_base(base: LogStore, log: LogOptions) -> None:
    """Refuse to continue a store whose ids or dense values mean something else."""
    before = base.log_options(log.paths)
    if (before.dense, before.dense_transform) != (log.dense, log.dense_transform):
        raise RecipeError(
            f"vocabularies_from = {base.path} has dense = {list(before.dense)} with dense_transform = "
            f'"{before.dense_transform}": the log that continues it needs the same'
        )
    for table, features in log.tables().items():
        if table not in before.tables():
            continue
        mine, other = log.features[features[0]], before.features[before.tables()[table][0]]
        if mine.ids != other.ids or (mine.ids != "vocabulary" and mine.rows != other.rows):
            raise RecipeError(
                f'vocabularies_from = {base.path} has table {table!r} with ids = "{other.ids}" and rows = '
                f'{other.rows}, but the log has "{mine.ids}" and {mine.rows}: give it the same'
            )
        known = base.table_rows()[table]
        if mine.rows is not None and mine.rows < known:
            raise RecipeError(
                f"rows = {mine.rows} of table {table!r}: vocabularies_from = {base.path} has {known} already: raise it"
            )


def _check_sections(log: LogOptions, split: LogSplitOptions, *, needs_sessions: str) -> None:
    if split.by == "time" and not log.time:
        raise RecipeError('[split] by = "time" needs the column of times: set time in [log]')
    if needs_sessions and not log.session:
        raise RecipeError(f"[deduplication] {needs_sessions} = true needs the column of sessions: set session in [log]")
    if not log.labels:
        raise RecipeError("label is empty: name the column that is to be learnt")
    if log.format == "interactions":
        raise RecipeError('[log] format = "interactions" needs no preparation: training reads such files as they are')


def are_text(store: LogStore) -> dict[str, bool | None]:
    """By feature of a store, whether its values were text."""
    return {feature.name: feature.is_text for feature in store.features}


def _stage(
    path: Path,
    columns: tuple[ColumnUse, ...],
    groups: Sequence[Sequence[Path]],
    log: LogOptions,
    split: LogSplitOptions,
    ranks: Ranks,
) -> Staged:
    """Read this rank's files of each split, and write its staged file."""
    everything = [file for group in groups for file in group]
    if twice := repeated_files(everything):
        raise DataError(f"{twice}: a file is in two splits, but what is trained on must not be tested on")
    labels = file_labels(everything)
    groups = ranks.own_files(groups)
    everything = [file for group in groups for file in group]
    sizes = {file: file.stat().st_size for file in everything}

    def blocks() -> Iterator[tuple[RawBlock, str, int]]:
        for code, files in enumerate(groups):
            for block in prefetch(read_log(log.format, files, text_types(columns))) if files else ():
                yield block, labels[block.file], code
                before = sum(sizes[file] for file in everything[: everything.index(block.file)])
                ranks.report("reading", (before + block.file_share * sizes[block.file]) / sum(sizes.values()))

    return stage(path, columns, log, split, blocks())


def _find_cuts(staged: StagedLog, ranks: Ranks, rows: int, split: LogSplitOptions, *, in_order: bool) -> Cuts:
    if split.by != "time":
        return None
    if split.instants:
        first, second = (parse_instant(instant) for instant in split.instants)
        return first, second
    train, validation, test = split.fractions
    bounds = (round(train * rows), round((train + validation) * rows))
    wanted = (validation + test > 0, test > 0)
    places = [bound if some and bound < rows else rows - 1 for bound, some in zip(bounds, wanted, strict=True)]
    times = ranks.times_of_rows(staged, places, in_order=in_order)
    # One past the last time, where a split has no share and would begin behind the last row.
    first, second = (
        time if some and bound < rows else time + 1 for time, bound, some in zip(times, bounds, wanted, strict=True)
    )
    return first, second


def _split_code(cuts: Cuts) -> str:
    """The code of a row's split, in SQL: what `_map_rows` works out in NumPy."""
    if cuts is None:
        return "split"
    return f"(CASE WHEN time < {cuts[0]} THEN 0 WHEN time < {cuts[1]} THEN 1 ELSE 2 END)"


def _map_rows(
    staged: Path, mapper: SampleMapper, cuts: Cuts, writers: Mapping[SplitName, SplitWriter], report: Progress
) -> dict[str, SplitEntry]:
    """Map all rows of a staged log and write them to their splits."""
    import pyarrow as pa
    from pyarrow import parquet

    done = 0
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(parquet.ParquetFile(staged))
        for writer in writers.values():
            stack.enter_context(writer)
        for batch in prefetch(file.iter_batches(ROW_GROUP_ROWS)):
            if cuts is None:
                codes = batch.column("split").to_numpy()
            else:
                codes = split_by_time(batch.column("time").to_numpy(), cuts)
            for name, writer in writers.items():
                chosen = codes == SPLITS.index(name)
                if chosen.any():
                    rows = batch if chosen.all() else batch.filter(pa.array(chosen))
                    writer.write(mapper.map(rows, name))
            done += batch.num_rows
            report("mapping", done / file.metadata.num_rows)
    report("checksums", 0.0)
    return {
        name: SplitEntry(
            rows=sum(file.rows for file in files),
            positives=tuple(map(int, mapper.positives.get(name, ()))),
            files=files,
        )
        for name, writer in writers.items()
        if (files := writer.files())
    }


def _joined(entries: Sequence[Mapping[str, SplitEntry]]) -> dict[str, SplitEntry]:
    """The splits of which each rank has written some samples."""
    found: dict[str, SplitEntry] = {}
    for name in SPLITS:
        if some := [written[name] for written in entries if name in written]:
            found[name] = SplitEntry(
                rows=sum(entry.rows for entry in some),
                positives=tuple(map(sum, zip(*(entry.positives for entry in some), strict=True))),
                files=tuple(file for entry in some for file in entry.files),
            )
    return found


def _check_splits(entries: Mapping[str, SplitEntry], split: LogSplitOptions) -> None:
    """Refuse a log of which a split that was asked for has no samples."""
    for name in split.expected_splits():
        if name not in entries:
            sizes = ", ".join(f"{other} {entry.rows}" for other, entry in entries.items())
            together = ", where samples of one instant stay together" if split.by == "time" else ""
            raise DataError(
                f"the {name} split has no samples ({sizes}): give it a larger share in [split], other instants, or "
                f"more of a log{together}"
            )


def _write_manifest(
    folder: Path,
    log: LogOptions,
    mapper: SampleMapper,
    entries: dict[str, SplitEntry],
    vocabularies: dict[str, Path],
    *,
    repeats_left_out: bool = False,
    **others: Any,
) -> None:
    from pyarrow import parquet

    described = tuple(
        describe_store_file(folder, path, parquet.read_metadata(path).num_rows) for path in vocabularies.values()
    )
    features = tuple(
        FeatureEntry(
            name=name,
            table=log.table_of(name),
            rows=mapper.table_rows(name),
            multi_hot=options.multi_hot,
            weighted=bool(options.weights),
            ids=options.ids,
            counts=mapper.counts[name],
            is_text=mapper.are_text[name],
            repeats_left_out=repeats_left_out,
        )
        for name, options in log.features.items()
    )
    files: tuple[StoreFile, ...] = (*(file for entry in entries.values() for file in entry.files), *described)
    LogManifest(
        windrow_version=version("windrow"),
        dense=log.dense,
        labels=log.labels,
        label_kind=log.label_kind,
        has_sample_weight=bool(log.sample_weight),
        moments=mapper.moments,
        dense_missing=mapper.dense_missing,
        has_time=bool(log.time),
        has_session=bool(log.session),
        features=features,
        splits=entries,
        vocabularies=described,
        **others,
        fingerprint=combined_fingerprint(files),
    ).write(folder / MANIFEST_NAME)


def _write_vocabularies(
    folder: Path, staged: StagedLog, ranks: Ranks, log: LogOptions, training: str, base: LogStore | None
) -> dict[str, Path]:
    """Write the vocabulary of each table that has one; the file of each. Collective."""
    tables = {
        table: features for table, features in log.tables().items() if log.features[features[0]].ids == "vocabulary"
    }
    known = {} if base is None else {table: base.vocabulary_file(table) for table in base.vocabulary_tables}
    counts = folder / "work" / "counts"
    if tables:
        (folder / VOCABULARIES).mkdir(exist_ok=True)
        counts.mkdir(exist_ok=True)
    for place, (table, features) in enumerate(tables.items()):
        ranks.report(f"counting {table}", place / len(tables))
        _check_one_type(staged.file, table, features, known.get(table))
        columns = [(f"id.{name}", log.features[name].multi_hot) for name in features]
        staged.count_values(counts / f"{table}-{ranks.rank}.parquet", columns, training)
    ranks.meet()
    written = {table: folder / VOCABULARIES / f"{table}.parquet" for table in tables}
    # Each by one of the ranks.
    for table in list(tables)[ranks.rank :: ranks.size]:
        rule = log.features[tables[table][0]]
        staged.write_vocabulary(
            written[table],
            [counts / f"{table}-{rank}.parquet" for rank in range(ranks.size)],
            min_count=rule.min_count,
            max_rows=rule.rows,
            base=known.get(table),
        )
    ranks.meet()
    return written


def _check_one_type(staged: Path, table: str, features: tuple[str, ...], before: Path | None) -> None:
    """Features that share a vocabulary, and one that it continues, have to have values of one type."""
    from pyarrow import parquet, types

    schema = parquet.read_schema(staged)
    kinds = [schema.field(f"id.{name}").type for name in features]
    kinds = [kind.value_type if types.is_list(kind) else kind for kind in kinds]
    if before is not None:
        kinds.append(parquet.read_schema(before).field("value").type)
    found = set(map(str, kinds))
    if len(found) > 1:
        raise DataError(
            f"features {', '.join(features)} share table {table!r}, but hold {' and '.join(sorted(found))}: give their "
            "columns one type, or the features a table each"
        )

"""A trained model of clicks, loaded and asked without MPI: one folder, which `windrow.recsys.exporting` writes.

    MODEL/model.json             features and tables in order, what labels are
    MODEL/dense.pt2              the dense part, `torch.export`: dense values and embeddings -> outputs
    MODEL/tables.safetensors     every table under its name, or what it is computed from; mapped, not read
    MODEL/forms.safetensors      of compressed tables, which rows are kept as they are, for example; not always there
    MODEL/log/                   rules and vocabularies of the prepared log, without samples

A request, from values of a log to probabilities::

    rows of a log --rules, vocabularies--> ids --one lookup for all tables of a width--> pooled --dense part--> outputs

Tables of one width stand one after another in their file, so that all their features are looked up as one matrix::

    features   item  user  item of the last visit          ids      3      0      5
    tables     item: 9 rows from row 0, user: 4 from 9     rows     3      9      5

Compressed tables are looked up through their form, as in training.

Others can be quantised row by row, to 8 or 4 bits a number, as FBGEMM has them for inference: a row's numbers q are
followed by its scale s and its smallest number b, and mean s q + b. PyTorch's own kernels look them up.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain, groupby
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from windrow.comm.errors import DataError, StoreError, nearest_name
from windrow.partition.manifest import read_document
from windrow.recsys.batches.batch import Batch
from windrow.recsys.batches.row_groups import ColumnChoice, decoded
from windrow.recsys.batches.transforms import TransformOptions, Transforms
from windrow.recsys.batches.windows import GroupBatches, Piece, batch_of_pieces, read_window
from windrow.recsys.log.clustering.log_files import is_text
from windrow.recsys.log.options import LogSplitOptions
from windrow.recsys.log.prepare import are_text
from windrow.recsys.log.readers import CRITEO_COLUMNS, NUM_CATEGORICAL, RawBlock, read_criteo_ids
from windrow.recsys.log.sample_mapper import SampleMapper, read_vocabularies
from windrow.recsys.log.staging import check_weights, conformed, staged_columns
from windrow.recsys.log.store import LogStore
from windrow.recsys.sharded.packing_kernels import summarise
from windrow.recsys.tables.compressed import make_form
from windrow.recsys.tables.forms import Form, Segment, whole_table
from windrow.recsys.tables.options import TableOptions

__all__ = ["Output", "ServedModel", "TableBits", "layout_of", "load"]

FORMAT_VERSION = 4
MODEL, DENSE, TABLES, FORMS, LOG = "model.json", "dense.pt2", "tables.safetensors", "forms.safetensors", "log"
CURE = "export the model again"


TableBits = Literal[32, 8, 4]
"""Of a number of a table that is not compressed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Output:
    """One key that a collection of tables gives: whose ids are looked up in which table.

    `pooled`: whether rows are added up, not given one by one. `mean`: whether the sum is divided by the number of ids.
    `weighted`: whether rows are multiplied by the weights of their ids first.
    """

    name: str
    feature: str
    table: str
    rows: int
    dim: int
    pooled: bool
    mean: bool
    weighted: bool


def layout_of(bits: int, rows: int, dim: int) -> tuple[torch.dtype, tuple[int, int]]:
    """Type and shape of a table in its file."""
    if bits == 32:
        return torch.float32, (rows, dim)
    return torch.uint8, (rows, dim + 8 if bits == 8 else -(-dim // 2) + 4)


def load(folder: Path | str) -> "ServedModel":
    """Open what `export` wrote, without MPI. Tables are mapped, not read, and processes of one machine share them.

    Raises:
        StoreError: the folder is not there, of another version, or damaged.
    """
    from safetensors.torch import load_file

    folder = Path(folder)
    described = read_document(folder / MODEL, format_version=FORMAT_VERSION, store="exported model", cure=CURE)
    try:
        outputs = [[Output(**output) for output in of_collection] for of_collection in described["outputs"]]
        transforms = {name: TransformOptions(**options) for name, options in described["transforms"].items()}
        program = torch.export.load(folder / DENSE).module(check_guards=False)
        # It would compare every shape with the example's at each request, which takes as long as a small model.
        program._forward_pre_hooks.clear()  # noqa: SLF001
        tables = _mapped(folder / TABLES, {name: tuple(shape) for name, shape in described["tables"].items()})
        parts = load_file(folder / FORMS) if (folder / FORMS).exists() else {}
        forms = [_form(given, tables, parts, folder) for given in described["forms"]]
        own = {dim: found for (bits, dim), found in tables.items() if bits == described["table_bits"]}
    except (KeyError, TypeError, OSError, RuntimeError, ValueError) as error:
        raise StoreError(f"{folder} is damaged ({error}): {CURE}") from error
    return ServedModel(LogStore.open(folder / LOG), transforms, outputs, own, forms, program)


class _Tables(NamedTuple):
    """Tables of one width, one after another in one matrix, and in which row each begins."""

    matrix: Tensor
    """[rows, dim] float32, or [rows, bytes] uint8."""
    dim: int
    bits: int
    first: dict[str, int]

    def rows(self, ids: Tensor) -> Tensor:
        """[*shape of ids, dim]."""
        if self.bits == 32:
            return F.embedding(ids, self.matrix)
        return self.sums(ids.flatten(), torch.arange(ids.numel() + 1), None).view(*ids.shape, self.dim)

    def sums(self, ids: Tensor, bags: Tensor, weights: Tensor | None) -> Tensor:
        """Of bags that begin at ``bags``, the last of which is where the last one ends: [bags, dim]."""
        if self.bits == 32:
            return F.embedding_bag(
                ids, self.matrix, bags, mode="sum", include_last_offset=True, per_sample_weights=weights
            )
        add = torch.ops.quantized.embedding_bag_byte_rowwise_offsets
        if self.bits == 4:
            add = torch.ops.quantized.embedding_bag_4bit_rowwise_offsets
        found: Tensor = add(self.matrix, ids, bags, per_sample_weights=weights, include_last_offset=True)
        return found[:, : self.dim].contiguous()


def _mapped(path: Path, shapes: Mapping[str, tuple[int, int, int]]) -> dict[tuple[int, int], _Tables]:
    """The tables of a file by bits and width; nothing is read.

    Args:
        path: of `write_safetensors`.
        shapes: rows, columns and bits of tables in the file's order, those of one kind together.
    """
    with path.open("rb") as file:
        start = 8 + int.from_bytes(file.read(8), "little")
    kinds: dict[tuple[int, int], dict[str, int]] = {}
    for name, (rows, dim, bits) in shapes.items():
        kinds.setdefault((bits, dim), {})[name] = rows
    layouts = {(bits, dim): layout_of(bits, sum(rows.values()), dim) for (bits, dim), rows in kinds.items()}
    total = start + sum(dtype.itemsize * rows * columns for dtype, (rows, columns) in layouts.values())
    if path.stat().st_size != total:
        raise StoreError(f"{path} has {path.stat().st_size} bytes, expected {total}: {CURE}")
    values = torch.from_file(str(path), shared=False, size=total, dtype=torch.uint8)
    found = {}
    for (bits, dim), (dtype, (rows, columns)) in layouts.items():
        stop = start + dtype.itemsize * rows * columns
        first = dict(zip(kinds[bits, dim], accumulate(kinds[bits, dim].values(), initial=0), strict=False))
        found[bits, dim] = _Tables(values[start:stop].view(dtype).view(rows, columns), dim, bits, first)
        start = stop
    return found


class _Compressed(NamedTuple):
    """Tables that are looked up through a form, and the values of what is stored of them."""

    form: Form
    stored: list[Tensor]


def _form(
    described: Mapping[str, Any], tables: Mapping[tuple[int, int], _Tables], parts: Mapping[str, Tensor], folder: Path
) -> _Compressed:
    files = ((of_table, of_table["code_file"]) for of_table in described["options"])
    options = [TableOptions(**of_table | {"code_file": file and folder / file}) for of_table, file in files]
    form = make_form([whole_table(*table) for table in described["tables"]], options)
    for part in form.state(replicated=True):
        if part.is_value:
            form.load(replace(part, tensor=parts[part.key]))
    found = [(tables[32, table.dim], table) for table in form.stored]
    stored = [of.matrix[of.first[table.name] : of.first[table.name] + table.num_rows] for of, table in found]
    return _Compressed(form, stored)


class _CompressedRun(NamedTuple):
    """Neighbouring outputs of tables of one form, looked up as one."""

    through: _Compressed
    pooled: bool
    mean: bool
    weighted: bool
    places: list[int]
    segments: list[Segment]

    def one_each(self, ids: Tensor) -> list[Tensor]:
        """What the outputs give for ids [F, B]."""
        form, stored = self.through
        values = ids[self.places]
        found = form.pool(self.segments, values.flatten(), torch.arange(values.numel() + 1), None, stored)
        if self.pooled:
            return [found]
        ones = torch.ones(ids.shape[1], dtype=torch.int64)
        widths = [segment.columns[1] for segment in self.segments]
        return [tensor for of_output in found.split(widths, 1) for tensor in (of_output, ones)]

    def lists(self, ids: Sequence[Tensor], weights: Sequence[Tensor], lengths: Tensor) -> list[Tensor]:
        """What the outputs give for the ids of each feature, in lists of lengths [F, B]; `weights` may be none."""
        form, stored = self.through
        if not self.pooled:
            found = []
            for place, segment in zip(self.places, self.segments, strict=True):
                each = torch.arange(len(ids[place]) + 1)
                found += [form.pool([segment], ids[place], each, None, stored), lengths[place]]
            return found
        counts = lengths[self.places]
        values = torch.cat([ids[place] for place in self.places])
        bags = F.pad(counts.flatten().cumsum(0), (1, 0))
        own = torch.cat([weights[place] for place in self.places]) if weights and self.weighted else None
        sums = form.pool(self.segments, values, bags, own, stored)
        if not self.mean:
            return [sums]
        widths = torch.tensor([segment.columns[1] for segment in self.segments])
        return [sums / counts.clamp(min=1).t().repeat_interleave(widths, 1)]


SUMS_BYTES = 1 << 19
"""Of sums that are on their way to their places in a cache."""


class _Run(NamedTuple):
    """Neighbouring outputs of one width, looked up as one: where their features stand, where their tables begin."""

    tables: _Tables
    pooled: bool
    mean: bool
    weighted: bool
    places: list[int]
    first: Tensor

    def one_each(self, ids: Tensor) -> list[Tensor]:
        """What the outputs give for ids [F, B]."""
        rows = self.tables.rows((ids[self.places] + self.first).t())
        if self.pooled:
            return [rows.flatten(1)]
        ones = torch.ones(ids.shape[1], dtype=torch.int64)
        return [tensor for of_output in rows.unbind(1) for tensor in (of_output, ones)]

    def lists(self, ids: Sequence[Tensor], weights: Sequence[Tensor], lengths: Tensor) -> list[Tensor]:
        """What the outputs give for the ids of each feature, in lists of lengths [F, B]; `weights` may be none."""
        counts = lengths[self.places]
        sizes = counts.sum(1)

        def rows(some: slice) -> Tensor:
            begins = torch.from_numpy(np.repeat(self.first[some].numpy(), sizes[some].numpy()))
            return torch.cat([ids[place] for place in self.places[some]]).add_(begins)

        features, samples = counts.shape
        if not self.pooled:
            parts = self.tables.rows(rows(slice(0, features))).split(sizes.tolist())
            return [tensor for pair in zip(parts, counts, strict=True) for tensor in pair]
        found = torch.empty(samples, features, self.tables.dim)
        # All at once would take large memory, which goes back to the system, and is asked for again at each request.
        at_once = max(1, SUMS_BYTES // (4 * self.tables.dim * max(samples, 1)))
        for first in range(0, features, at_once):
            some = slice(first, first + at_once)
            bags = F.pad(counts[some].flatten().cumsum(0), (1, 0))
            own = torch.cat([weights[place] for place in self.places[some]]) if weights and self.weighted else None
            sums = self.tables.sums(rows(some), bags, own).view(-1, samples, self.tables.dim)
            if self.mean:
                sums /= counts[some].clamp(min=1).unsqueeze(2)
            found[:, some] = sums.transpose(0, 1)
        return [found.flatten(1)]


def _check_weights(weights: Tensor, ids: Tensor, lengths: Tensor | None) -> None:
    if lengths is None:
        raise DataError("weights go with lengths: give the number of ids of each feature of each sample")
    if weights.numel() != ids.numel():
        raise DataError(f"{weights.numel()} weights for {ids.numel()} ids: give one for each")


class ServedModel:
    """Answers requests; made by `load`. Threads may share it.

    Attributes:
        features: names of the features whose ids `score` takes, in this order.
        num_dense: dense values of a sample.
        labels: names of the outputs.
    """

    def __init__(
        self,
        log: LogStore,
        transforms: Mapping[str, TransformOptions],
        outputs: Sequence[Sequence[Output]],
        tables: Mapping[int, _Tables],
        forms: "Sequence[_Compressed]",
        program: nn.Module,
    ) -> None:
        self._log = log
        self._rules = replace(log.log_options((log.path,)), label=(), sample_weight="", time="", session="")
        self._columns = staged_columns(self._rules, LogSplitOptions(), are_text(log))
        vocabularies = {table: log.vocabulary_file(table) for table in log.vocabulary_tables}
        self._vocabularies = read_vocabularies(vocabularies)
        self._choice = ColumnChoice(
            features=log.features,
            num_dense=log.num_dense,
            num_labels=0,
            transforms=Transforms(transforms, log.features, log.dense) if transforms else None,
        )
        self._program = program
        self.features = [feature.name for feature in self._choice.given]
        self.num_dense = log.num_dense
        self.labels = log.labels
        # Tables of one's own may have fewer rows than the log has ids.
        most = dict[str, int]()
        for output in chain.from_iterable(outputs):
            most[output.feature] = min(output.rows, most.get(output.feature, output.rows))
        rows = [min(feature.rows, most.get(feature.name, feature.rows)) for feature in self._choice.given]
        self._rows_of_features = np.array(rows, np.int64)
        self._runs: list[list[_Run | _CompressedRun]] = []
        through = {
            table.name: (number, place)
            for number, (form, _) in enumerate(forms)
            for place, table in enumerate(form.tables)
        }

        def kind(output: Output) -> tuple[int, int, tuple[bool, bool, bool]]:
            number, _ = through.get(output.table, (-1, 0))
            return number, output.dim if number < 0 else 0, (output.pooled, output.mean, output.weighted)

        self._tables: dict[str, tuple[int, _Run | _CompressedRun]] = {}
        for of_collection in outputs:
            self._runs.append([])
            for (number, dim, how), run in groupby(of_collection, kind):
                members = list(run)
                places = [self.features.index(output.feature) for output in members]
                if number < 0:
                    first = torch.tensor([[tables[dim].first[output.table]] for output in members])
                    self._runs[-1].append(_Run(tables[dim], *how, places, first))
                else:
                    segments = [Segment(through[output.table][1], 0, (0, output.dim)) for output in members]
                    self._runs[-1].append(_CompressedRun(forms[number], *how, places, segments))
                self._tables |= {output.table: (at, self._runs[-1][-1]) for at, output in enumerate(members)}
        self._rows = {output.table: output.rows for of_collection in outputs for output in of_collection}

    @torch.inference_mode()
    def vectors(self, table: str, ids: Tensor) -> Tensor:
        """Vectors of some rows of one table, for search by similarity, say.

        Args:
            table: name.
            ids: [n] int64 row numbers.

        Returns:
            [n, dim] float32.

        Raises:
            DataError: there is no such table, or an id is past it.
        """
        if table not in self._tables:
            raise DataError(f"there is no table {table!r}. {nearest_name(table, self._tables)}")
        if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < self._rows[table]:
            raise DataError(f"table {table!r} has the rows 0 to {self._rows[table] - 1}, not all of {ids.tolist()}")
        at, run = self._tables[table]
        if isinstance(run, _Run):
            return run.tables.rows(ids + run.first[at])
        form, stored = run.through
        return form.pool([run.segments[at]], ids, torch.arange(len(ids) + 1), None, stored)

    @torch.inference_mode()
    def predict(self, rows: Any) -> Tensor:
        """Probabilities of binary labels, values of real ones, for samples as they stand in a log.

        Args:
            rows: columns of the log by name, without labels: ``pyarrow.Table``, ``pandas.DataFrame``, or a mapping from
                names to sequences.

        Returns:
            [n], or [n, L] of several labels, float32.

        Raises:
            DataError: a column is missing, or a value does not fit; values that no vocabulary knows do.
        """
        batch = self._batch(rows)
        ids = batch.sparse
        found = self.score(batch.dense, ids.values(), ids.lengths(), ids.weights_or_none())
        return found.sigmoid() if self._log.manifest.label_kind == "binary" else found

    @torch.inference_mode()
    def score(self, dense: Tensor, ids: Tensor, lengths: Tensor | None = None, weights: Tensor | None = None) -> Tensor:
        """Outputs of the model for samples whose ids are known: logits of binary labels.

        Args:
            dense: [B, D] float32.
            ids: int64 row numbers, features first, samples second: with `lengths` [V], else [F * B] or [F, B].
            lengths: [F * B] int64 ids of each feature of each sample; None: one each.
            weights: [V] float32 of the ids, for collections that were made with them; None: 1.

        Returns:
            [B], or [B, L] of several labels.

        Raises:
            DataError: shapes do not agree, weights come without lengths, or an id is past its table.
        """
        samples, features = dense.shape[0], len(self.features)
        if dense.dim() != 2 or dense.shape[1] != self.num_dense or dense.dtype != torch.float32:
            raise DataError(
                f"dense values have shape {list(dense.shape)} and {dense.dtype}: expected float32 [n, {self.num_dense}]"
            )
        if weights is not None:
            _check_weights(weights, ids, lengths)
        what, given_each = ("ids", ids) if lengths is None else ("lengths", lengths)
        if given_each.numel() != features * samples:
            raise DataError(f"{given_each.numel()} {what} for {samples} samples of {features} features: give one each")
        if lengths is not None:
            lengths, ids = lengths.view(features, samples).long().contiguous(), ids.contiguous()
            starts, one_each = np.empty(features + 1, np.int64), np.empty(features, np.bool_)
            if not summarise(lengths.numpy(), ids.numpy(), self._rows_of_features, starts, one_each):
                self._refuse(ids, lengths)
            if weights is None and one_each.all():
                lengths = None
        if lengths is None:
            ids = ids.view(features, samples)
            last = torch.from_numpy(self._rows_of_features - 1).unsqueeze(1)
            if ids.numel() and int((last - ids).bitwise_or_(ids).min()) < 0:  # Where either is.
                self._refuse(ids.flatten(), torch.ones_like(ids))
        else:
            sizes = np.diff(starts).tolist()
            of_ids, of_weights = (() if one is None else one.split(sizes) for one in (ids, weights))
        given: list[Tensor] = []
        for runs in self._runs:
            parts = [run.one_each(ids) if lengths is None else run.lists(of_ids, of_weights, lengths) for run in runs]
            found = [tensor for part in parts for tensor in part]
            given += [torch.cat(found, 1)] if runs[0].pooled and len(found) > 1 else found
        result: Tensor = self._program(dense, *given)
        return result

    def _refuse(self, ids: Tensor, lengths: Tensor) -> None:
        """Say what is wrong with ids in lists of lengths [F, B]."""
        if bool((lengths < 0).any()):
            raise DataError(f"a length is {int(lengths.min())}: expected 0 or more")
        if int(lengths.sum()) != len(ids):
            raise DataError(f"lengths add up to {int(lengths.sum())}, but there are {len(ids)} ids")
        rows = self._rows_of_features
        outside = (ids < 0) | (ids >= torch.from_numpy(np.repeat(rows, lengths.sum(1).numpy())))
        raise DataError(f"id {int(ids[outside][0])} is outside its table: rows are {rows.tolist()}")

    def _batch(self, rows: Any) -> Batch:
        import pyarrow as pa

        try:
            if isinstance(rows, Mapping):
                rows = pa.table(dict(rows))
            elif not isinstance(rows, pa.Table):
                rows = pa.Table.from_pandas(rows, preserve_index=False)
        except (AttributeError, TypeError, pa.ArrowException) as error:
            raise DataError(f"the request is no table ({error}): give lists of one value a sample by column") from error
        if not rows.num_rows:
            raise DataError("no samples to predict")
        if self._rules.format == "criteo":
            # There a file has hexadecimal text, and its reader reads numbers.
            for place, name in enumerate(rows.schema.names):
                if name in CRITEO_COLUMNS[-NUM_CATEGORICAL:] and is_text(rows[name].type):
                    rows = rows.set_column(place, name, read_criteo_ids(rows[name]))
        (batch,) = rows.combine_chunks().to_batches()
        names = tuple(rows.schema.names)
        block = RawBlock(batch=batch, file=Path("request"), columns_in_file=names, unit="row", first=0, file_share=1.0)
        columns = {use.name: conformed(block, use, "", self._rules)[1] for use in self._columns}
        check_weights(block, self._columns, columns)
        staged = pa.RecordBatch.from_pydict(columns)
        # Of its own, since it counts what it maps.
        mapper = SampleMapper(self._rules, self._vocabularies, self._log.manifest.moments)
        group = decoded(pa.Table.from_batches([mapper.map(staged, "served")]), self._choice)
        window = read_window([(group, 0, rows.num_rows)], 0, None)
        return batch_of_pieces([Piece(window, 0, rows.num_rows)], self._choice.plain, GroupBatches((), []))

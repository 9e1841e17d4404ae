"""A trained model of clicks for serving: written as one folder, loaded and asked without MPI.

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

import copy
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate, groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from windrow.comm.errors import DataError, RecipeError, StoreError, nearest_name
from windrow.partition.atomic_writes import atomic_folder
from windrow.partition.manifest import read_document, write_document
from windrow.recsys.batches.batch import Batch
from windrow.recsys.batches.jagged import Deduplicated, Jagged
from windrow.recsys.batches.row_groups import ColumnChoice, decoded
from windrow.recsys.batches.transforms import TransformOptions, Transforms
from windrow.recsys.batches.windows import GroupBatches, Piece, batch_of_pieces, read_window
from windrow.recsys.embeddings import PooledRows
from windrow.recsys.log.files import check_replaceable
from windrow.recsys.log.options import LogSplitOptions
from windrow.recsys.log.prepare import are_text
from windrow.recsys.log.readers import RawBlock
from windrow.recsys.log.sample_mapper import SampleMapper, read_vocabularies
from windrow.recsys.log.staging import check_weights, conformed, staged_columns
from windrow.recsys.log.store import MANIFEST_NAME, VOCABULARIES, LogStore
from windrow.recsys.models.retrieval import RetrievalModel
from windrow.recsys.recommender import Recommender, collections_of
from windrow.recsys.sharded.collection import ShardedTables
from windrow.recsys.sharded.packing_kernels import summarise
from windrow.recsys.tables.compressed import make_form
from windrow.recsys.tables.forms import Form, Segment, whole_table
from windrow.recsys.tables.options import TableOptions, pooling_of
from windrow.training.shard_files import write_safetensors

if TYPE_CHECKING:
    from windrow.recsys.torchrec_adapter import KeyedJaggedTensor

__all__ = ["ServedModel", "export", "load"]

FORMAT_VERSION = 3
MODEL, DENSE, TABLES, FORMS, LOG = "model.json", "dense.pt2", "tables.safetensors", "forms.safetensors", "log"
CURE = "export the model again"


TableBits = Literal[32, 8, 4]
"""Of a number of a table that is not compressed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Output:
    """One key that a collection of tables gives: whose ids are looked up in which table.

    `pooled`: whether rows are added up, not given one by one. `mean`: whether the sum is divided by the number of ids.
    """

    name: str
    feature: str
    table: str
    rows: int
    dim: int
    pooled: bool
    mean: bool


# ------------------------------------------------------------------------------------------------------------ export


def export(
    model: nn.Module,
    log: LogStore,
    folder: Path | str,
    *,
    transforms: Mapping[str, TransformOptions] | None = None,
    table_bits: TableBits = 32,
    overwrite: bool = False,
) -> None:
    """Write a trained model for `load`. Collective: all ranks of its tables call it; rank 0 writes.

    Args:
        model: a `Recommender` of a model of clicks, or any module that holds collections of tables and is called as
            ``model(batch)``. Its forward method is traced by `torch.export` for any number of samples: shapes come
            from ``tensor.shape``, and nothing depends on values.
        log: that it was trained on; must agree.
        folder: to write; appears whole or not at all.
        transforms: that ids went through while the log was read.
        table_bits: of a number of a table: 8 takes 8 bytes more for each row, 4 takes 4 more. Compressed tables stay
            float32.
        overwrite: replace an existing folder.

    Raises:
        RecipeError: the model cannot be traced, with the reason; or it predicts no labels.
        StoreError: the folder exists, or cannot be written.

    Memory: the largest table, on every rank.
    """
    check_replaceable(Path(folder), overwrite=overwrite, what="exported model", marker=MODEL)
    collections = collections_of(model)
    outputs = [_outputs(collection) for collection in collections]
    stored = [(collection, spec) for collection in collections for spec in collection.stored_specs()]
    forms = [(collection, form) for collection in collections for form in collection.table_forms()]
    of_forms = {table.name for _, form in forms for table in form.stored}
    bits_of = {spec.name: 32 if spec.name in of_forms else table_bits for _, spec in stored}
    # As the file has them: the widest numbers first.
    stored.sort(key=lambda found: (-bits_of[found[1].name], found[1].dim))
    tables = {spec.name: (collection, spec) for collection, spec in stored}
    names = {output.table for of_collection in outputs for output in of_collection}
    if len(tables) < len(stored) or len(names) < sum(len(collection.configs) for collection in collections):
        raise RecipeError("two collections of the model have tables of one name: give each table a name of its own")
    if collections[0].world.rank != 0:
        for name, (collection, _) in tables.items():
            collection.stored_table(name)
        return
    program = _traced(model, collections, outputs, log)
    with atomic_folder(Path(folder), overwrite=overwrite) as path:
        torch.export.save(program, path / DENSE)
        layout = {name: _layout(bits_of[name], spec.rows, spec.dim) for name, (_, spec) in tables.items()}
        write_safetensors(
            path / TABLES,
            layout,
            lambda name: [_quantised(tables[name][0].stored_table(name).cpu(), bits_of[name])],
            metadata={"format": "pt"},
        )
        parts = {part.key: part.tensor for _, form in forms for part in form.state(replicated=True) if part.is_value}
        if parts:
            own_layout = {name: (values.dtype, tuple(values.shape)) for name, values in parts.items()}
            write_safetensors(path / FORMS, own_layout, lambda name: [parts[name].cpu()], metadata={"format": "pt"})
        (path / LOG).mkdir()  # A prepared log without samples.
        if log.manifest.vocabularies:
            shutil.copytree(log.path / VOCABULARIES, path / LOG / VOCABULARIES)
        replace(log.manifest, splits={}).write(path / LOG / MANIFEST_NAME)
        described = {
            "outputs": [[asdict(output) for output in of_collection] for of_collection in outputs],
            "table_bits": table_bits,
            "tables": {name: [spec.rows, spec.dim, bits_of[name]] for name, (_, spec) in tables.items()},
            "forms": [
                {
                    "tables": [[table.name, table.num_rows, table.dim] for table in form.tables],
                    "options": [_described(collection.options.of(table.name), path) for table in form.tables],
                }
                for collection, form in forms
            ],
            "transforms": {name: asdict(options) for name, options in (transforms or {}).items()},
        }
        write_document(path / MODEL, described, format_version=FORMAT_VERSION)


def _layout(bits: int, rows: int, dim: int) -> tuple[torch.dtype, tuple[int, int]]:
    """Type and shape of a table in its file."""
    if bits == 32:
        return torch.float32, (rows, dim)
    return torch.uint8, (rows, dim + 8 if bits == 8 else -(-dim // 2) + 4)


def _quantised(table: Tensor, bits: int) -> Tensor:
    """Values [rows, dim] float32 as their file has them."""
    if bits == 32:
        return table
    pack = torch.ops.quantized.embedding_bag_byte_prepack
    if bits == 4:
        # Two numbers to a byte; one that is there already keeps the row's range.
        table = torch.cat([table, table[:, table.shape[1] - table.shape[1] % 2 :]], 1)
        pack = torch.ops.quantized.embedding_bag_4bit_prepack
    packed: Tensor = pack(table.contiguous())
    return packed


def _outputs(collection: ShardedTables[Any]) -> list[Output]:
    """The keys of a collection, in order."""
    is_pooled, layout = collection.form.with_lengths, collection.layout_of_batches
    return [
        Output(
            name=name,
            feature=layout.features[feature],
            table=config.name,
            rows=config.num_embeddings,
            dim=config.embedding_dim,
            pooled=is_pooled,
            mean=is_pooled and pooling_of(config) == "MEAN",
        )
        for name, (table, feature, _) in zip(collection.embedding_names, layout.outputs, strict=True)
        for config in [collection.configs[table]]
    ]


def _traced(
    model: nn.Module, collections: Sequence[ShardedTables[Any]], outputs: Sequence[Sequence[Output]], log: LogStore
) -> Any:
    program = _Program(model, collections, outputs, num_labels=len(log.labels)).eval()
    samples, items = torch.export.Dim("samples", min=1), 0
    generator = torch.Generator().manual_seed(0)
    example: list[Tensor] = [torch.rand(3, log.num_dense, generator=generator)]
    shapes: list[dict[int, Any]] = [{0: samples}]
    for of_collection in outputs:
        if of_collection[0].pooled:
            example.append(torch.rand(3, sum(output.dim for output in of_collection), generator=generator))
            shapes.append({0: samples})
            continue
        for output in of_collection:
            example += [torch.rand(5, output.dim, generator=generator), torch.tensor([2, 0, 3])]
            shapes += [{0: torch.export.Dim(f"items_{items}", min=1)}, {0: samples}]
            items += 1
    try:
        with torch.no_grad():
            return torch.export.export(
                program, tuple(example), dynamic_shapes=(shapes[0], tuple(shapes[1:])), strict=False
            )
    except (RuntimeError, ValueError, TypeError, AttributeError, NotImplementedError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise RecipeError(
            f"{type(model).__name__} cannot be exported: torch.export says {reason}. Take sizes from tensor.shape, let "
            "nothing depend on values, and use torch's operations alone; windrow export writes its tables in any case"
        ) from error


class _Program(nn.Module):
    """A model without its tables: what they give comes as tensors, those of collection after collection."""

    def __init__(
        self,
        model: nn.Module,
        collections: Sequence[ShardedTables[Any]],
        outputs: Sequence[Sequence[Output]],
        *,
        num_labels: int,
    ) -> None:
        super().__init__()
        if isinstance(model, Recommender) and isinstance(model.model, RetrievalModel):
            raise RecipeError("the model recommends items, and predicts no labels: see windrow recommend")
        self._num_labels = num_labels
        self._stubs = [_Given(of_collection) for of_collection in outputs]
        stubs = {id(collection): stub for collection, stub in zip(collections, self._stubs, strict=True)}
        self.model = copy.deepcopy(model, cast("dict[int, Any]", stubs)).cpu()

    def forward(self, dense: Tensor, *embeddings: Tensor) -> Tensor:
        """Outputs [B] or [B, L] of dense values [B, D]; see `_Program`."""
        rest = iter(embeddings)
        for stub in self._stubs:
            stub.given = [next(rest) for _ in range(stub.num_tensors)]
        labels = dense.new_zeros(dense.shape[0], self._num_labels)
        numbers = torch.zeros(dense.shape[0], dtype=torch.int64, device=dense.device)
        try:
            result: Tensor = self.model(Batch(dense, cast("KeyedJaggedTensor", None), labels, numbers))
        finally:
            for stub in self._stubs:
                stub.given = []
        return result


class _Given(nn.Module):
    """Stands for a collection of tables in a traced model."""

    def __init__(self, outputs: Sequence[Output]) -> None:
        super().__init__()
        self.given: list[Tensor] = []
        self._names = tuple(output.name for output in outputs)
        self._dims = tuple(output.dim for output in outputs)
        self._is_pooled = outputs[0].pooled
        self.num_tensors = 1 if self._is_pooled else 2 * len(outputs)

    def lookup_of(self, features: object, deduplicated: Sequence[object] = ()) -> "_Given":
        """The lookup of a `Recommender`."""
        del features, deduplicated
        return self

    def finish(self) -> Any:
        if self._is_pooled:
            return [PooledRows(self._names, self._dims, self.given[0], None)]
        pairs = zip(self._names, self.given[::2], self.given[1::2], strict=True)
        return {name: Deduplicated(Jagged.of_lengths(values, lengths)) for name, values, lengths in pairs}

    def forward(self, features: object, deduplicated: Sequence[object] = ()) -> Any:
        from windrow.recsys.torchrec_adapter import JaggedTensor, KeyedTensor

        del features, deduplicated
        if self._is_pooled:
            return KeyedTensor(list(self._names), list(self._dims), self.given[0])
        pairs = zip(self._names, self.given[::2], self.given[1::2], strict=True)
        return {name: JaggedTensor(values, lengths=lengths) for name, values, lengths in pairs}


# ------------------------------------------------------------------------------------------------------------- serve


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
    layouts = {(bits, dim): _layout(bits, sum(rows.values()), dim) for (bits, dim), rows in kinds.items()}
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


def _described(options: TableOptions, folder: Path) -> dict[str, Any]:
    """What a table's form is made by; codes are copied into the folder."""
    found = {key: value for key, value in asdict(options).items() if key not in ("per_table", "pretrained")}
    if file := options.code_file:
        found["code_file"] = shutil.copyfile(file, folder / f"codes-{len(list(folder.glob('codes-*')))}.npy").name
    return found


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
        own = torch.cat([weights[place] for place in self.places]) if weights else None
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
            own = torch.cat([weights[place] for place in self.places[some]]) if weights else None
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
        self._rows_of_features = np.array([feature.rows for feature in self._choice.given], np.int64)
        self._runs: list[list[_Run | _CompressedRun]] = []
        through = {
            table.name: (number, place)
            for number, (form, _) in enumerate(forms)
            for place, table in enumerate(form.tables)
        }

        def kind(output: Output) -> tuple[int, int, bool, bool]:
            number, _ = through.get(output.table, (-1, 0))
            return number, output.dim if number < 0 else 0, output.pooled, output.mean

        self._tables: dict[str, tuple[int, _Run | _CompressedRun]] = {}
        for of_collection in outputs:
            self._runs.append([])
            for (number, dim, pooled, mean), run in groupby(of_collection, kind):
                members = list(run)
                places = [self.features.index(output.feature) for output in members]
                if number < 0:
                    first = torch.tensor([[tables[dim].first[output.table]] for output in members])
                    self._runs[-1].append(_Run(tables[dim], pooled, mean, places, first))
                else:
                    segments = [Segment(through[output.table][1], 0, (0, output.dim)) for output in members]
                    self._runs[-1].append(_CompressedRun(forms[number], pooled, mean, places, segments))
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
            weights: [V] float32 of the ids; None: 1.

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
        if lengths is None:
            if ids.numel() != features * samples:
                raise DataError(f"{ids.numel()} ids for {samples} samples of {features} features: give one each")
        else:
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

"""Writing a trained model for serving: `windrow.recsys.serving` says what is in its folder, and reads it."""

import copy
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from windrow.comm.errors import RecipeError, WindrowError
from windrow.partition.atomic_writes import atomic_folder
from windrow.partition.manifest import write_document
from windrow.recsys.batches.batch import Batch
from windrow.recsys.batches.jagged import Deduplicated, Jagged
from windrow.recsys.batches.transforms import TransformOptions
from windrow.recsys.embeddings import PooledRows
from windrow.recsys.log.files import check_replaceable
from windrow.recsys.log.store import MANIFEST_NAME, VOCABULARIES, LogStore
from windrow.recsys.models.retrieval import RetrievalModel
from windrow.recsys.recommender import Recommender, collections_of
from windrow.recsys.serving import DENSE, FORMAT_VERSION, FORMS, LOG, MODEL, TABLES, Output, TableBits, layout_of
from windrow.recsys.sharded.collection import ShardedTables
from windrow.recsys.tables.options import TableOptions, pooling_of
from windrow.training.dropout import run_model
from windrow.training.shard_files import write_safetensors

if TYPE_CHECKING:
    from windrow.recsys.torchrec_adapter import KeyedJaggedTensor

__all__ = ["export"]


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
    world, programs = collections[0].world, []

    def trace() -> None:
        check_replaceable(Path(folder), overwrite=overwrite, what="exported model", marker=MODEL)
        programs.append(_traced(model, collections, outputs, log))

    world.from_rank_0(trace, stage="export")
    if not programs:
        for name, (collection, _) in tables.items():
            collection.stored_table(name)
        return
    with atomic_folder(Path(folder), overwrite=overwrite) as path:
        torch.export.save(programs[0], path / DENSE)
        layout = {name: layout_of(bits_of[name], spec.rows, spec.dim) for name, (_, spec) in tables.items()}
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


def _described(options: TableOptions, folder: Path) -> dict[str, Any]:
    """What a table's form is made by; codes are copied into the folder."""
    found = {key: value for key, value in asdict(options).items() if key not in ("per_table", "pretrained")}
    if file := options.code_file:
        found["code_file"] = shutil.copyfile(file, folder / f"codes-{len(list(folder.glob('codes-*')))}.npy").name
    return found


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
            weighted=is_pooled and collection.has_weights,
        )
        for name, (table, feature, _) in zip(collection.embedding_names, layout.outputs, strict=True)
        for config in [collection.configs[table]]
    ]


def _traced(
    model: nn.Module, collections: Sequence[ShardedTables[Any]], outputs: Sequence[Sequence[Output]], log: LogStore
) -> Any:
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
        program = _Program(model, collections, outputs, num_labels=len(log.labels)).eval()
        with torch.no_grad():
            return torch.export.export(
                program, tuple(example), dynamic_shapes=(shapes[0], tuple(shapes[1:])), strict=False
            )
    except WindrowError:
        raise
    except Exception as error:
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
            result: Tensor = run_model(self.model, Batch(dense, cast("KeyedJaggedTensor", None), labels, numbers))
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

"""windrow.recsys.serving: a trained model written, loaded without its ranks, and asked; equal to training."""

import struct
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet
from torch import Tensor, nn

import windrow as wr
from windrow import recsys
from windrow.comm.errors import DataError, RecipeError, StoreError
from windrow.comm.loopback import Loopback
from windrow.comm.world import World
from windrow.recsys.batches.batch import Batch
from windrow.recsys.models.click_models import ClickModel
from windrow.recsys.models.options import ModelOptions
from windrow.recsys.serving import TABLES, ServedModel
from windrow.recsys.tables.options import PoolingType, TableOptions, TableOverrides
from windrow.training.dense import make_linear

ROWS = 300


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> recsys.LogStore:
    folder = tmp_path_factory.mktemp("served")
    draw = np.random.default_rng(1)
    lists = [draw.integers(0, 20, draw.integers(0, 4)).tolist() for _ in range(ROWS)]
    columns = {
        "click": draw.integers(0, 2, ROWS),
        "buy": draw.integers(0, 2, ROWS),
        "x": draw.normal(size=ROWS),
        "item": [f"item {number}" for number in draw.integers(0, 20, ROWS)],
        "past": lists,
        "weights": [[0.5 + number for number in range(len(of_row))] for of_row in lists],
    }
    parquet.write_table(pa.table(columns), folder / "log.parquet")
    features = {
        "item": recsys.FeatureOptions(),
        "past": recsys.FeatureOptions(ids="hash", rows=30, multi_hot=True, weights="weights"),
    }
    store = recsys.prepare(
        folder / "log.parquet", folder / "log", label=["click", "buy"], dense=["x"], features=features
    )
    recsys.prepare_rows(folder / "all", [folder / "log.parquet"], store)
    return store


class OwnNet(nn.Module):
    """Tables of two widths, and a mean over the samples' own values; calls tables and shapes as users do."""

    def __init__(self, world: World, log: recsys.LogStore, *, is_weighted: bool = True) -> None:
        super().__init__()
        item, past = log.tables(dim=8)
        past = recsys.EmbeddingBagConfig(
            name=past.name, num_embeddings=past.num_embeddings, embedding_dim=3, feature_names=past.feature_names
        )
        self.tables = recsys.EmbeddingBagCollection([item, past], is_weighted=is_weighted, world=world, plan="row_wise")
        self.head = make_linear(12, 2, generator=torch.Generator().manual_seed(2))

    def forward(self, batch: Batch, *, dropout: Any) -> Tensor:
        del dropout
        pooled = self.tables(batch.sparse)
        width = torch.cat([pooled["past"], pooled["item"], batch.dense], 1)
        outputs: Tensor = self.head(torch.relu(width.view(batch.num_samples, -1)))
        return outputs


def kind_of_recommender(stored: TableOptions | None = None, **options: Any) -> Any:
    def make(world: World, log: recsys.LogStore) -> recsys.Recommender:
        sequences = options.get("sequences", ())
        tables = [table for table in log.tables(dim=4) if table.name not in sequences]
        bags = recsys.EmbeddingBagCollection(tables, is_weighted=True, world=world, optimizer=stored)
        of_sequences = None
        if sequences:
            config = recsys.EmbeddingConfig(name="past", num_embeddings=30, embedding_dim=4, feature_names=["past"])
            of_sequences = recsys.EmbeddingCollection([config], world=world, optimizer=stored)
        model = recsys.build_model(
            ModelOptions(top=(8,), **options),
            num_dense=1,
            pooled_dims=dict(zip(bags.embedding_names, bags.embedding_dims, strict=True)),
            sequence_dims=dict.fromkeys(sequences, 4),
            num_labels=2,
            seed=1,
        )
        return recsys.Recommender(bags, of_sequences, model)

    return make


def with_given_codes(world: World, log: recsys.LogStore) -> recsys.Recommender:
    file = log.path.parent / f"given-{world.rank}.npy"
    np.save(file, np.arange(30) % 3)
    of_past = TableOverrides(form="codes", code_parts=2, compression=2, code_file=file)
    made: recsys.Recommender = kind_of_recommender(TableOptions(per_table={"past": of_past}), bottom=(8,))(world, log)
    return made


ROBE = TableOptions(form="robe", compression=1.5, robe_block=4, optimizer="adagrad")
TRAIN = TableOptions(form="tensor_train", compression=1.1, tt_cores=2, hot_share=0.2, optimizer="adagrad")
PER_TABLE = TableOptions(
    per_table={"past": TableOverrides(form="hashed", compression=2, hot_bytes=48, hot_counted=True)}
)
SHARDED = TableOptions(form="robe", compression=1.5, robe_block=2, robe_sharded=True)
MODELS = {
    "own": OwnNet,
    "own, unweighted": partial(OwnNet, is_weighted=False),
    "dlrm": kind_of_recommender(bottom=(8,)),
    "robe": kind_of_recommender(ROBE, bottom=(8,)),
    "robe, sharded": kind_of_recommender(SHARDED, bottom=(8,)),
    "robe sequence": kind_of_recommender(ROBE, bottom=(8,), sequences=("past",), sequence_query="item"),
    "tensor_train": kind_of_recommender(TRAIN, bottom=(8,)),
    "int8": kind_of_recommender(TableOptions(form="int8"), bottom=(8,)),
    "given codes": with_given_codes,
    "one hashed": kind_of_recommender(PER_TABLE, bottom=(8,)),
    "sequence": kind_of_recommender(bottom=(8,), sequences=("past",), sequence_query="item"),
}


@pytest.mark.parametrize("kind", MODELS)
def test_a_served_model_says_what_the_trained_one_says(spmd: Any, log: recsys.LogStore, kind: str) -> None:
    def body(world: World) -> tuple[Tensor, Path]:
        folder: Path = world.broadcast_object(
            log.path.parent / kind, root=0, stage="test"
        )  # Processes have a log each.
        model = MODELS[kind](world, log)
        with wr.Trainer(world, model, recsys.ClickTask(log), epochs=1, batch_size=64, reader_shards=4) as trainer:
            trainer.train_epoch(0)
            recsys.export(model, log, folder, overwrite=True)
            return trainer.predict(log=recsys.LogStore.open(log.path.parent / "all")), folder

    expected, folder = spmd(body)[0]
    served = recsys.load(folder)
    rows = parquet.read_table(log.path.parent / "log.parquet").drop_columns(["click", "buy"])
    torch.testing.assert_close(served.predict(rows), expected.sigmoid(), rtol=1e-5, atol=1e-6)
    # Any number of samples, in any of the forms that users have.
    torch.testing.assert_close(served.predict(rows.slice(5, 1)), expected[5:6].sigmoid(), rtol=1e-5, atol=1e-6)
    as_lists = rows.slice(7, 2).to_pydict()
    torch.testing.assert_close(served.predict(as_lists), expected[7:9].sigmoid(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(served.predict(rows.to_pandas()), expected.sigmoid(), rtol=1e-5, atol=1e-6)


@pytest.fixture(scope="module")
def served(log: recsys.LogStore) -> ServedModel:
    recsys.export(OwnNet(Loopback.single(), log), log, log.path.parent / "served")
    return recsys.load(log.path.parent / "served")


def test_requests_of_ids(served: ServedModel) -> None:
    dense = torch.zeros(2, 1)
    one_each = served.score(dense, torch.tensor([[2, 3], [4, 5]]))
    listed = served.score(dense, torch.tensor([2, 3, 4, 5]), torch.tensor([1, 1, 1, 1]))
    torch.testing.assert_close(one_each, listed)
    weighted = served.score(
        dense, torch.tensor([2, 3, 4, 4, 5]), torch.tensor([1, 1, 2, 1]), torch.tensor([1.0, 1.0, 0.25, 0.75, 1.0])
    )
    torch.testing.assert_close(one_each, weighted)
    for ids, lengths, words in (
        ([2, 3, 4, 30], None, "id 30 is outside its table"),
        ([2, -1, 4, 5], [1, 1, 1, 1], "id -1 is outside its table"),
        ([2, 3, 4], None, "3 ids for 2 samples of 2 features"),
        ([2, 3, 4], [1, 1, 1], "3 lengths for 2 samples of 2 features"),
        ([2, 3, 4], [1, 1, 1, 1], "lengths add up to 4, but there are 3 ids"),
        ([2, 3, 4, 5], [1, -1, 2, 2], "a length is -1: expected 0 or more"),
    ):
        with pytest.raises(DataError, match=words):
            served.score(dense, torch.tensor(ids), None if lengths is None else torch.tensor(lengths))


FEATURES = ("b", "a", "c", "d", "a2")


class EveryKind(nn.Module):
    """Bags of two widths, sums and means, a table that two features share, features out of order; and sequences."""

    def __init__(self, *, is_weighted: bool, stored: TableOptions | None = None) -> None:
        super().__init__()
        add = PoolingType.SUM
        mean = add if is_weighted else PoolingType.MEAN
        bags = (("d", 4, add, ["d"]), ("a", 4, add, ["a2", "a"]), ("c", 2, mean, ["c"]), ("b", 2, add, ["b"]))
        self.bags = recsys.EmbeddingBagCollection(
            [
                recsys.EmbeddingBagConfig(
                    name=name, num_embeddings=9, embedding_dim=dim, feature_names=features, pooling=pooling
                )
                for name, dim, pooling, features in bags
            ],
            is_weighted=is_weighted,
            world=Loopback.single(),
            optimizer=stored,
        )
        lists = [("e", 3, ["c", "a"]), ("f", 3, ["b"])]
        self.lists = recsys.EmbeddingCollection(
            [
                recsys.EmbeddingConfig(name=name, num_embeddings=9, embedding_dim=dim, feature_names=features)
                for name, dim, features in lists
            ],
            world=Loopback.single(),
            optimizer=stored,
        )

    def forward(self, batch: Batch) -> Tensor:
        """Every number that is looked up counts, and differently."""
        pooled, lists = self.bags(batch.sparse).values(), self.lists(batch.sparse)
        outputs: Tensor = pooled @ torch.arange(1.0, pooled.shape[1] + 1)
        for number, name in enumerate(("c", "a", "b"), start=2):
            rows = lists[name].values()
            owners = torch.arange(outputs.shape[0]).repeat_interleave(lists[name].lengths(), output_size=rows.shape[0])
            outputs = outputs.index_add(0, owners, (rows * number).cos().sum(1))
        return outputs


HASHED = TableOptions(form="hashed", compression=1.5)


@pytest.fixture(
    scope="module",
    params=[
        (False, None, 32),
        (True, None, 32),
        (False, HASHED, 32),
        (True, HASHED, 8),
        (True, None, 8),
        (False, None, 4),
    ],
    ids=["means", "means of hashed rows", "weights", "weights of hashed rows", "weights, 8 bits", "means, 4 bits"],
)
def every_kind(request: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[EveryKind, ServedModel]:
    folder = tmp_path_factory.mktemp("every_kind")
    columns: dict[str, Any] = {"label": [0, 1] * 10, **dict.fromkeys(FEATURES, [[1], [2, 3]] * 10)}
    parquet.write_table(pa.table(columns), folder / "log.parquet")
    rule = recsys.FeatureOptions(ids="rows", rows=9, multi_hot=True)
    log = recsys.prepare(folder / "log.parquet", folder / "log", features=dict.fromkeys(FEATURES, rule))
    is_weighted, stored, bits = request.param
    model = EveryKind(is_weighted=is_weighted, stored=stored)
    recsys.export(model, log, folder / "model", table_bits=bits)
    served = recsys.load(folder / "model")
    if bits < 32 and stored is None:
        learn_rounded(model, served, bits)
    return model, served


def learn_rounded(model: EveryKind, served: ServedModel, bits: int) -> None:
    """Give the model the numbers that are served, which are at most half a step off its own."""
    state = model.state_dict()
    for name, weight in state.items():
        rounded = served.vectors(name.split(".")[-2], torch.arange(9))
        step = (weight.amax(1) - weight.amin(1)) / (2**bits - 1)
        # Scales and smallest numbers of 4 bits are rounded too, to float16.
        off = (rounded - weight).abs().amax(1)
        assert bool((off <= 0.51 * step + 1e-3 * (bits == 4)).all())
        assert bool((off > 0).any())
        state[name] = rounded
    model.load_state_dict(state)


LIST_OF_IDS = st.lists(st.integers(0, 8), max_size=4)


@given(st.lists(st.lists(LIST_OF_IDS, min_size=5, max_size=5), min_size=1, max_size=6), st.booleans(), st.booleans())
def test_lists_of_ids_are_looked_up_as_in_training(
    every_kind: tuple[EveryKind, ServedModel],
    jagged_of: Any,
    samples: list[list[list[int]]],
    ones: bool,
    one_each: bool,
) -> None:
    model, served = every_kind
    samples = [[ids[:1] or [8] for ids in lists] for lists in samples] if one_each else samples
    columns = {name: [sample[place] for sample in samples] for place, name in enumerate(FEATURES)}
    weights = {
        name: [[1.0 if ones else 0.5 + place for place, _ in enumerate(ids)] for ids in lists]
        for name, lists in columns.items()
    }
    sparse = jagged_of(columns, weights if model.bags.is_weighted() else None)
    labels, dense = torch.zeros(len(samples), 1), torch.zeros(len(samples), 0)
    expected = model(Batch(dense, sparse, labels, torch.arange(len(samples))))
    given_weights = None if ones else sparse.weights_or_none()
    found = served.score(dense, sparse.values(), sparse.lengths(), given_weights)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_tables_of_few_bits_are_small(log: recsys.LogStore, tmp_path: Path) -> None:
    model = OwnNet(Loopback.single(), log)
    for bits, row_bytes in ((32, (32, 12)), (8, (16, 11)), (4, (8, 6))):
        recsys.export(model, log, tmp_path / str(bits), table_bits=bits)
        item, past = (config.num_embeddings for config in model.tables.configs)
        (header,) = struct.unpack("<Q", (tmp_path / str(bits) / TABLES).read_bytes()[:8])
        size = (tmp_path / str(bits) / TABLES).stat().st_size
        assert size == 8 + header + item * row_bytes[0] + past * row_bytes[1]


class SumOfPooled(ClickModel):
    def finish(self, begun: Tensor, embeddings: Any, context: Any = None) -> Tensor:
        del begun, context
        total: Tensor = embeddings.pooled().sum(1)
        return total


def test_weights_that_do_not_fit_ids_are_refused(served: ServedModel, tmp_path: Path) -> None:
    dense, ids = torch.zeros(2, 1), torch.tensor([2, 3, 4, 5])
    with pytest.raises(DataError, match="weights go with lengths"):
        served.score(dense, ids, weights=torch.ones(4))
    with pytest.raises(DataError, match="5 weights for 4 ids: give one for each"):
        served.score(dense, ids, torch.ones(4, dtype=torch.int64), weights=torch.ones(5))
    columns = {"label": [0, 1] * 10, "a": [[1], [2, 3]] * 10, "much": [[0.5], [2.0, 0.0]] * 10}
    parquet.write_table(pa.table(columns), tmp_path / "log.parquet")
    rule = recsys.FeatureOptions(ids="rows", rows=9, multi_hot=True, weights="much")
    log = recsys.prepare(tmp_path / "log.parquet", tmp_path / "log", features={"a": rule})
    table = recsys.EmbeddingBagConfig(name="a", num_embeddings=9, embedding_dim=4, feature_names=["a"])

    class Sums(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bags = recsys.EmbeddingBagCollection([table], is_weighted=True, world=Loopback.single())

        def forward(self, batch: Batch) -> Tensor:
            return self.bags(batch.sparse).values().sum(1)

    recsys.export(Sums(), log, tmp_path / "model")
    weighted = recsys.load(tmp_path / "model")
    assert len(weighted.predict({"a": [[1], [2, 3]], "much": [[1.0], [1.0, 2.0]]})) == 2
    few = recsys.EmbeddingBagConfig(name="a", num_embeddings=5, embedding_dim=4, feature_names=["a"])
    unweighted = recsys.EmbeddingBagCollection([few], world=Loopback.single())
    model = recsys.Recommender(unweighted, None, SumOfPooled())
    with wr.Trainer(Loopback.single(), model, recsys.ClickTask(log)) as trainer:
        assert trainer.task.opening_lines() == [
            "ids of a have weights, which no collection of the model takes (is_weighted = True)"
        ]
    recsys.export(model, log, tmp_path / "few")
    with pytest.raises(DataError, match=r"id 7 is outside its table: rows are \[5\]"):
        recsys.load(tmp_path / "few").score(torch.zeros(1, 0), torch.tensor([7]))
    with pytest.raises(DataError, match="column 'much' has 1 weights for 2 ids: give one for each"):
        weighted.predict({"a": [[1], [2, 3]], "much": [[1.0], [1.0]]})


def test_a_compressed_table_with_first_values_is_served(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32)
    np.save(tmp_path / "rows.npy", rows)
    columns = {"label": [0, 1] * 10, "a": list(range(9)) + [0] * 11}
    parquet.write_table(pa.table(columns), tmp_path / "log.parquet")
    rule = recsys.FeatureOptions(ids="rows", rows=9)
    log = recsys.prepare(tmp_path / "log.parquet", tmp_path / "log", features={"a": rule})
    options = TableOptions(form="narrow", compression=1.2, pretrained={"a": tmp_path / "rows.npy"})
    table = recsys.EmbeddingBagConfig(name="a", num_embeddings=9, embedding_dim=4, feature_names=["a"])

    class Sums(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bags = recsys.EmbeddingBagCollection([table], world=Loopback.single(), optimizer=options)

        def forward(self, batch: Batch) -> Tensor:
            return self.bags(batch.sparse).values().sum(1)

    model = Sums()
    recsys.export(model, log, tmp_path / "model")
    (tmp_path / "rows.npy").unlink()
    served = recsys.load(tmp_path / "model")
    torch.testing.assert_close(served.vectors("a", torch.arange(9)), model.bags.whole_table("a"))


def test_categories_of_criteo_come_as_in_its_files(tmp_path: Path) -> None:
    texts = [f"{number:08x}" for number in (0x68FD1E64, 0x05032141, 0x25)]
    rest = "\t".join(["1"] * 13 + ["{}"] + ["0"] * 25)
    lines = [f"{number % 2}\t{rest.format(texts[number % 3])}\n" for number in range(60)]
    (tmp_path / "log.txt").write_text("".join(lines))
    rules = {"C1": recsys.FeatureOptions(ids="hash", rows=50)}
    log = recsys.prepare(tmp_path / "log.txt", tmp_path / "log", format="criteo", features=rules)

    class Sums(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bags = recsys.EmbeddingBagCollection(log.tables(dim=4), world=Loopback.single())

        def forward(self, batch: Batch) -> Tensor:
            return self.bags(batch.sparse).values().sum(1)

    recsys.export(Sums(), log, tmp_path / "model")
    served = recsys.load(tmp_path / "model")
    as_text, as_numbers = (served.predict({"C1": ids}) for ids in (texts, [int(text, 16) for text in texts]))
    assert torch.equal(as_text, as_numbers)
    assert len(as_text.unique()) == 3


def test_dense_values_have_a_shape(served: ServedModel) -> None:
    for wrong in (torch.zeros(2, 2), torch.zeros(2), torch.zeros(2, 1, dtype=torch.float64)):
        with pytest.raises(DataError, match="expected float32"):
            served.score(wrong, torch.tensor([[2, 3], [4, 5]]))


def test_rows_that_do_not_fit(served: ServedModel) -> None:
    with pytest.raises(DataError, match="there is no column 'x'"):
        served.predict({"item": ["item 1"], "past": [[1]], "weights": [[1.0]]})
    with pytest.raises(DataError, match="no samples"):
        served.predict({"item": []})
    for wrong in ({"item": [1, 2], "x": [0.0]}, {"item": 3}, [{"item": 1}]):
        with pytest.raises(DataError, match="the request is no table"):
            served.predict(wrong)
    unseen = served.predict({"x": [0.0], "item": ["never seen"], "past": [[]], "weights": [[]]})
    assert unseen.shape == (1, 2)


def test_loading_needs_no_mpi(log: recsys.LogStore, served: ServedModel) -> None:
    del served
    program = (
        "import sys; from windrow import recsys; "
        f"model = recsys.load({str(log.path.parent / 'served')!r}); "
        "print(model.predict({'x': [1.0], 'item': ['item 3'], 'past': [[1]], 'weights': [[1.0]]}).shape); "
        "assert 'mpi4py' not in sys.modules"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    assert "[1, 2]" in found.stdout


class DependsOnValues(OwnNet):
    """Decides by a value."""

    def forward(self, batch: Batch, *, dropout: Any) -> Tensor:
        outputs = super().forward(batch, dropout=dropout)
        return outputs * 2 if float(outputs.sum()) > 0 else outputs


def test_what_cannot_be_exported_or_loaded(log: recsys.LogStore, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"DependsOnValues cannot be exported: torch\.export says"):
        recsys.export(DependsOnValues(Loopback.single(), log), log, tmp_path / "model")
    assert list(tmp_path.iterdir()) == []

    def caught(world: World) -> int:
        locked = OwnNet(world, log)
        locked.lock = threading.Lock()  # Cannot be copied.
        for model in (DependsOnValues(world, log), locked):
            with pytest.raises(RecipeError, match=r"cannot be exported: torch\.export says"):  # By every rank.
                recsys.export(model, log, tmp_path / "model")
        return int(world.all_reduce(torch.ones(1), stage="test"))

    assert Loopback.run(2, caught) == [2, 2]
    with pytest.raises(StoreError, match="no exported model"):
        recsys.load(tmp_path)
    recsys.export(OwnNet(Loopback.single(), log), log, tmp_path / "model")
    tables = tmp_path / "model" / "tables.safetensors"
    tables.write_bytes(tables.read_bytes()[:-4])
    with pytest.raises(StoreError, match="export the model again"):
        recsys.load(tmp_path / "model")


def test_vectors_of_rows(every_kind: tuple[EveryKind, ServedModel]) -> None:
    model, served = every_kind
    ids = torch.tensor([8, 0, 3, 3])
    for collection, names in ((model.bags, ("a", "b", "c", "d")), (model.lists, ("e", "f"))):
        for name in names:
            torch.testing.assert_close(served.vectors(name, ids), collection.whole_table(name)[ids])
    assert served.vectors("a", ids[:0]).shape == (0, 4)
    with pytest.raises(DataError, match="there is no table 'g'"):
        served.vectors("g", ids)
    with pytest.raises(DataError, match="table 'a' has the rows 0 to 8"):
        served.vectors("a", torch.tensor([9]))

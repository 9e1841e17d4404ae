"""Logs that continue others: samples mapped by the rules of a store, and vocabularies that grow."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from windrow import recsys
from windrow.comm.errors import RecipeError


def write(path: Path, **columns: Any) -> Path:
    parquet.write_table(pa.table(columns), path)
    return path


def samples(store: recsys.LogStore, split: str) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = pa.concat_tables(map(parquet.read_table, store.split(split).files)).to_pydict()
    return found


ALL_TRAIN = recsys.LogSplitOptions(fractions=(1.0, 0.0, 0.0))


@pytest.fixture
def monday(tmp_path: Path) -> recsys.LogStore:
    log = write(
        tmp_path / "monday.parquet",
        click=[0, 1, 1, 0],
        buy=[0, 0, 1, 0],
        x=[1.0, 2.0, 3.0, None],
        item=["a", "b", "b", None],
        past=[["a"], [], ["b", "c"], ["c"]],
    )
    return recsys.prepare(
        log,
        tmp_path / "monday",
        label=["click", "buy"],
        dense=["x"],
        features={
            "item": recsys.FeatureOptions(table="goods"),
            "past": recsys.FeatureOptions(table="goods", multi_hot=True),
        },
        dense_transform="standard",
        split=ALL_TRAIN,
    )


def test_new_rows_are_mapped_as_the_store_was(monday: recsys.LogStore, tmp_path: Path) -> None:
    write(tmp_path / "new.parquet", x=[5.0, 2.0], item=["new", "b"], past=[["a", "new"], []])
    store = recsys.prepare_rows(tmp_path / "new", [tmp_path / "new.parquet"], monday)
    assert store.labels == ()
    vocabulary = monday.vocabulary("goods").to_pydict()
    rows = dict(zip(vocabulary["value"], vocabulary["id"], strict=True))
    found = samples(store, "test")
    assert found["item"] == [1, rows["b"]]
    assert found["past"] == [[rows["a"], 1], []]
    deviation = np.std([1.0, 2.0, 3.0])
    assert found["dense"] == [[pytest.approx((value - 2) / deviation)] for value in (5.0, 2.0)]
    again = recsys.prepare_rows(tmp_path / "again", [tmp_path / "monday.parquet"], monday)
    assert samples(again, "test") == samples(monday, "train")
    assert again.split("test").positives == (2, 1)


def test_one_value_that_is_missing_is_refused_not_the_column(monday: recsys.LogStore, tmp_path: Path) -> None:
    path = write(tmp_path / "new.parquet", click=[1], buy=[None], x=[0.0], item=["a"], past=[["a"]])
    with pytest.raises(Exception, match="'buy' is empty"):
        recsys.prepare_rows(tmp_path / "new", [path], monday)


VALUES = st.lists(st.text("abcdef", min_size=1, max_size=2), min_size=1, max_size=20)


@pytest.mark.parametrize("rule", [{}, {"ids": "hash", "rows": 1000}])
def test_numbers_as_text_are_the_same_values(tmp_path: Path, rule: dict[str, Any]) -> None:
    """Tools write a column as numbers one day and as text the next."""
    features = {"item": recsys.FeatureOptions(**rule)}
    text = write(tmp_path / "text.parquet", label=[0, 1, 1], item=["7", "5", "7"])
    numbers = write(tmp_path / "numbers.parquet", label=[0, 1, 1], item=[7, 5, 7])
    for first, later in ((text, numbers), (numbers, text)):
        store = recsys.prepare(first, tmp_path / "first", features=features, split=ALL_TRAIN, overwrite=True)
        mapped = recsys.prepare_rows(tmp_path / "later", [later], store, overwrite=True)
        assert samples(mapped, "test")["item"] == samples(store, "train")["item"]
    words = write(tmp_path / "words.parquet", item=["seven"])
    with pytest.raises(Exception, match="has 'seven', expected a whole number, as before"):
        recsys.prepare_rows(tmp_path / "later", [words], store, overwrite=True)


@given(before=VALUES, after=VALUES)
def test_known_values_keep_their_rows(
    tmp_path_factory: pytest.TempPathFactory, before: list[str], after: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("days")
    stores: list[recsys.LogStore] = []
    for day, values in (("monday", before), ("tuesday", after)):
        path = write(folder / f"{day}.parquet", label=[0.0] * len(values), item=values)
        base = {"vocabularies_from": stores[0].path} if stores else {}
        stores.append(recsys.prepare(path, folder / day, features=["item"], split=ALL_TRAIN, **base))
    first, second = (store.vocabulary("item").to_pydict() for store in stores)
    known = len(first["id"])
    assert second["value"][:known] == first["value"]
    assert second["id"] == list(range(2, 2 + len(second["id"])))
    new = {value: after.count(value) for value in after if value not in first["value"]}
    assert second["value"][known:] == sorted(new, key=lambda value: (-new[value], value))
    assert second["count"] == [after.count(value) for value in second["value"]]
    assert stores[1].manifest.ancestors == (stores[0].fingerprint,)


def test_a_log_that_cannot_continue_another_is_refused(monday: recsys.LogStore, tmp_path: Path) -> None:
    log = tmp_path / "monday.parquet"
    with pytest.raises(RecipeError, match="needs the same"):
        recsys.prepare(log, tmp_path / "x", label="click", features=["item"], vocabularies_from=monday.path)
    options: dict[str, Any] = {"dense": ["x"], "dense_transform": "standard", "vocabularies_from": monday.path}
    for rule, words in (({"ids": "hash", "rows": 9}, "give it the same"), ({"rows": 4}, "has 5 already: raise it")):
        features = {"item": recsys.FeatureOptions(table="goods", **rule)}
        with pytest.raises(RecipeError, match=words):
            recsys.prepare(log, tmp_path / "x", label="click", features=features, **options)


def test_labels_weights_and_what_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "log.parquet", stars=[1.5, -2.0, 4.0], weight=[1.0, 0.0, 2.5], item=[7, 8, 7])
    store = recsys.prepare(
        path,
        tmp_path / "stars",
        label="stars",
        label_kind="real",
        sample_weight="weight",
        features=["item"],
        split=ALL_TRAIN,
    )
    assert store.split("train").positives == ()
    reader = recsys.BatchReader(store, "train", rank=0, size=1, batch_size=3, reader_shards=1, shuffle="none")
    with reader.batches(0) as batches:
        (batch,) = batches
    assert batch.labels.tolist() == [1.5, -2.0, 4.0]
    assert batch.weights is not None
    assert batch.weights.tolist() == [1.0, 0.0, 2.5]
    bad = write(tmp_path / "bad.parquet", stars=[1.0], weight=[-1.0], item=[7])
    with pytest.raises(Exception, match=r"'weight' is -1\.0, expected a weight of 0 or more"):
        recsys.prepare(bad, tmp_path / "bad", label="stars", sample_weight="weight", features=["item"])
    with pytest.raises(RecipeError, match="names a column twice"):
        recsys.prepare(path, tmp_path / "bad", label=["stars", "stars"], features=["item"])
    with pytest.raises(RecipeError, match="is also an input"):
        recsys.prepare(path, tmp_path / "bad", label="stars", sample_weight="item", features=["item"])

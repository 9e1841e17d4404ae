"""windrow.recsys.log.synthetic.generate: Parquet files with the right types, whole or not at all, in bounded memory."""

import pyarrow as pa
import pytest
from pyarrow import parquet

from windrow.comm.errors import DataError, StoreError
from windrow.recsys.batches.deduplication.options import DeduplicationOptions
from windrow.recsys.log.options import FeatureOptions
from windrow.recsys.log.synthetic import generate
from windrow.recsys.log.synthetic.generate import generate_log, recipe_groups, session_log_recipe
from windrow.recsys.log.synthetic.options import FeatureGroup, SessionFeature, SessionLogOptions, recd

SMALL = recd(length_scale=0.05, rows_scale=0.001)


def use_rows(patch, rows):
    patch.setattr(generate, "_rows_per_group", lambda options: rows)


def test_columns_and_types(tmp_path, monkeypatch):
    use_rows(monkeypatch, 300)
    seen = []
    path = tmp_path / "folder" / "a.parquet"
    generate_log(path, SMALL, samples=1000, progress=seen.append)
    table = parquet.read_table(path)
    assert table.num_rows == sum(seen) == 1000
    types = {str(field.name): field.type for field in table.schema}
    assert types["label"] == pa.int8()
    assert types["session"] == types["time"] == types["item"] == pa.int64()
    assert types["user_age"] == pa.float32()
    assert types["history_items"] == pa.list_(pa.int64())
    assert all(column.null_count == 0 for column in table.columns)
    groups = parquet.ParquetFile(path).metadata
    assert [groups.row_group(k).num_rows for k in range(groups.num_row_groups)] == [300, 300, 300, 100]
    assert [file.name for file in path.parent.iterdir()] == ["a.parquet"]


@pytest.mark.parametrize("order", ["time", "sessions"])
def test_row_groups_threads_and_runs_do_not_matter(tmp_path, monkeypatch, order):
    tables = []
    for name, rows, threads in (("a", 64, 1), ("b", 1000, 3), ("c", 64, 2)):
        use_rows(monkeypatch, rows)
        generate_log(tmp_path / name, SMALL, samples=777, order=order, threads=threads)
        tables.append(parquet.read_table(tmp_path / name).combine_chunks())
    assert tables[0].equals(tables[1])
    assert (tmp_path / "a").stat().st_size != (tmp_path / "b").stat().st_size
    assert (tmp_path / "a").read_bytes() == (tmp_path / "c").read_bytes()


def test_a_longer_log_begins_with_the_sessions_of_a_shorter_one(tmp_path):
    for samples in (300, 900):
        generate_log(tmp_path / str(samples), SMALL, samples=samples, order="sessions")
    short, long = (parquet.read_table(tmp_path / name).combine_chunks() for name in ("300", "900"))
    assert long.slice(0, 300).combine_chunks().equals(short)


@pytest.mark.parametrize(("length_scale", "rows"), [(1, 16 * 1024), (100, 1024)])
def test_row_groups_are_bounded_in_bytes(tmp_path, monkeypatch, length_scale, rows):
    asked = []
    monkeypatch.setattr(generate, "sample_blocks", lambda *_, block_rows, **__: asked.append(block_rows) or [])
    generate_log(tmp_path / "a", recd(length_scale=length_scale), samples=1)
    assert asked == [rows]


def test_wrong_use(tmp_path):
    with pytest.raises(DataError, match="0 samples"):
        generate_log(tmp_path / "a", SMALL, samples=0)
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="cannot write"):
        generate_log(tmp_path / "file" / "a", SMALL, samples=10)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def group(name, unchanged, **settings):
    features = tuple(SessionFeature(name=f"{name}_{number}", rows=1_000_000) for number in range(2))
    return FeatureGroup(name=name, features=features, unchanged=unchanged, **settings)


def test_groups_that_hardly_repeat_are_left_out():
    # With 16.5 samples a session, 1.5 times as many samples as distinct ones need 35 % unchanged.
    options = SessionLogOptions(groups=(group("a", 0.37), group("b", 0.33), FeatureGroup(name="c", dense=("d",))))
    assert recipe_groups(options) == [["a_0", "a_1"]]


def test_the_preset_groups_what_is_on_the_users_side():
    groups = recipe_groups(recd())
    DeduplicationOptions(groups=tuple(tuple(names) for names in groups))
    named = {name for names in groups for name in names}
    assert {feature.name for feature in recd().features} - named == {"item", "seller", "brand", "category"}


def test_a_whole_recipe_names_log_and_store():
    options = SessionLogOptions(groups=(group("a", 0.9, mean_length=3), group("b", 0.1)))
    recipe = session_log_recipe(options, log="a.parquet", store="stores/a")
    assert recipe["store"] == "stores/a"
    assert recipe["log"]["paths"] == ["a.parquet"]
    assert recipe["log"]["features"] == {
        "a_0": {"ids": "rows", "rows": 1_000_000, "multi_hot": True},
        "a_1": {"ids": "rows", "rows": 1_000_000, "multi_hot": True},
        "b_0": {"ids": "rows", "rows": 1_000_000},
        "b_1": {"ids": "rows", "rows": 1_000_000},
    }
    for settings in recipe["log"]["features"].values():
        FeatureOptions(**settings)

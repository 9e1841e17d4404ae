"""Which table gets which form under a budget of bytes."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windrow.comm.errors import RecipeError
from windrow.partition.tables.plan import TableSpec
from windrow.recsys.sharded.tables_of_ranks import table_specs
from windrow.recsys.tables.choose import choose_forms, form_rows, with_forms
from windrow.recsys.tables.options import EmbeddingBagConfig, TableOptions

TABLES = [
    EmbeddingBagConfig(name="day", num_embeddings=31, embedding_dim=16),
    EmbeddingBagConfig(name="item", num_embeddings=20_000, embedding_dim=16),
    EmbeddingBagConfig(name="user", num_embeddings=50_000, embedding_dim=16),
]
SPECS = table_specs(TABLES, TableOptions())


def zipf(rows: int, *, seed: int | None = None) -> np.ndarray:
    counts = (1e6 / np.arange(1, rows + 1)).astype(np.int64)
    return counts if seed is None else np.random.default_rng(seed).permutation(counts)


COUNTS = {"day": zipf(31), "item": zipf(20_000), "user": zipf(50_000, seed=1)}


@settings(max_examples=30, deadline=None)
@given(
    st.integers(20_000, 6_000_000),
    st.sampled_from(["robe", "hashed", "tensor_train"]),
    st.sampled_from(["sgd", "adagrad", "rowwise_adagrad"]),
    st.sampled_from([0.0, 0.5, 0.9]),
)
def test_what_is_chosen_fits_and_leaves_little(budget, form, optimizer, kept_share):
    options = TableOptions(optimizer=optimizer)
    specs = table_specs(TABLES, options)
    chosen = choose_forms(specs, COUNTS, budget, options=options, form=form, kept_share=kept_share)
    assert [found.table for found in chosen] == ["day", "item", "user"]
    total = sum(found.num_bytes for found in chosen)
    dense = sum(spec.num_bytes for spec in specs)
    assert total <= budget
    if dense <= budget:
        assert all(found.form == "dense" for found in chosen)
    elif form == "robe":
        assert total >= 0.98 * budget
    # What a collection makes of it takes the bytes that are said.
    made = table_specs(TABLES, with_forms(options, chosen))
    assert [spec.num_bytes for spec in made] == [found.num_bytes for found in chosen]


def test_small_tables_and_hot_rows_are_kept_as_they_are():
    day, item, user = choose_forms(SPECS, COUNTS, 400_000)
    assert (day.form, item.form, user.form) == ("dense", "robe", "robe")
    assert (day.settings(), day.kept_lookups) == ({"form": "dense"}, 1.0)
    assert item.hot_rows > 0
    assert 0.4 < item.kept_lookups < 1
    # The ids of users are not in the order of how often they are looked up.
    assert not item.hot_counted
    assert user.hot_counted
    assert item.settings() == {
        "form": "robe",
        "compression": item.compression,
        "hot_bytes": 64 * item.hot_rows,
        "hot_counted": False,
    }


def test_narrow_rows_are_wider_in_smaller_tables():
    _, item, user = choose_forms(SPECS, COUNTS, 1_500_000, form="narrow", kept_share=0.1)
    assert user.compression / item.compression == pytest.approx(2.5**0.3)
    _, item, user = choose_forms(SPECS, COUNTS, 1_500_000, form="quotient_remainder", kept_share=0.1)
    assert user.compression == item.compression


def test_a_larger_budget_keeps_more():
    small, large = (choose_forms(SPECS, COUNTS, budget) for budget in (200_000, 800_000))
    assert all(a.kept_lookups <= b.kept_lookups for a, b in zip(small, large, strict=True))
    assert small[2].compression > large[2].compression


def test_tables_without_counts():
    often = [replace(spec, lookups_per_sample=20.0) if spec.name == "item" else spec for spec in SPECS]
    chosen = choose_forms(often, {}, 2_000_000)
    assert [found.form for found in chosen] == ["dense", "robe", "robe"]
    assert chosen[1].hot_rows > 0
    assert chosen[2].hot_rows == 0


def test_a_budget_that_is_too_small():
    with pytest.raises(RecipeError, match=r"1000 bytes are too few for 3 tables: in form .tensor_train. they need \d+"):
        choose_forms(SPECS, COUNTS, 1000, form="tensor_train")


def test_rows_for_people():
    rows = form_rows(choose_forms(SPECS, COUNTS, 400_000))
    assert rows[0] == {
        "table": "day",
        "form": "dense",
        "dense bytes": "2,108",
        "bytes": "2,108",
        "hot rows": "0",
        "lookups of rows as they are": "100.0%",
    }


def test_tables_that_a_form_cannot_make_smaller_stay_dense():
    rows = {"large": 10_000, "three": 3}
    tables = [TableSpec(name=name, rows=count, dim=16, features=(name,)) for name, count in rows.items()]
    counts = {"large": np.ones(10_000, np.int64), "three": np.zeros(3, np.int64)}
    chosen = choose_forms(tables, counts, 200_000, form="quotient_remainder", kept_share=0.0)
    assert [one.form for one in chosen] == ["quotient_remainder", "dense"]
    assert sum(one.num_bytes for one in chosen) <= 200_000

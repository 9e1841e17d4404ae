import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.recsys.batches.arrow_columns import filled_in, leave_out_repeats, runs_of_column

pa = pytest.importorskip("pyarrow")

FEATURES = (("item", ""), ("cart", ""), ("basket", "basket.weights"))
# Few values, so that neighbours are often equal.
samples = st.lists(
    st.tuples(
        st.integers(0, 1),
        st.lists(st.integers(0, 1), max_size=2),
        st.lists(st.tuples(st.integers(0, 1), st.sampled_from([0.5, 1.0])), max_size=2),
    ),
    min_size=1,
    max_size=12,
)


def table_of(rows):
    return pa.table(
        {
            "label": pa.array(range(len(rows)), pa.float32()),
            "item": pa.array([item for item, _, _ in rows], pa.int64()),
            "cart": pa.array([cart for _, cart, _ in rows], pa.list_(pa.int64())),
            "basket": pa.array([[one for one, _ in basket] for _, _, basket in rows], pa.list_(pa.int64())),
            "basket.weights": pa.array(
                [[weight for _, weight in basket] for _, _, basket in rows], pa.list_(pa.float32())
            ),
        }
    )


@given(samples, st.integers(0, 3))
def test_a_null_stands_for_what_the_sample_before_has(rows, start):
    """Also in a slice, which begins anew."""
    rows = rows[: max(len(rows) - start, 1)]
    whole = table_of([(1, [1], [])] * start + rows)
    written = leave_out_repeats(whole.slice(start), FEATURES)
    assert written.schema == whole.schema
    assert written["label"].to_pylist() == whole["label"].to_pylist()[start:]
    for index, (name, weights_name) in enumerate(FEATURES):
        nulls = [value is None for value in written[name].to_pylist()]
        assert nulls == [row > 0 and rows[row][index] == rows[row - 1][index] for row in range(len(rows))]
        if weights_name:
            assert nulls == [value is None for value in written[weights_name].to_pylist()]
    assert filled_in(written).equals(whole.slice(start).combine_chunks())


@pytest.mark.parametrize("kind", [pa.int64(), pa.list_(pa.int64())])
def test_refuses_a_row_group_that_begins_with_a_null(kind):
    value = 3 if kind == pa.int64() else [3]
    with pytest.raises(ValueError, match="the first value of a row group is null"):
        runs_of_column(pa.array([None, value], kind))


def test_refuses_weights_of_other_samples():
    ids = pa.array([[], None], pa.list_(pa.int64()))
    weights = pa.array([None, []], pa.list_(pa.float32()))
    with pytest.raises(ValueError, match="different lengths"):
        runs_of_column(ids, weights)


@pytest.mark.parametrize("kind", [pa.int32(), pa.list_(pa.int32()), pa.list_(pa.float64()), pa.string()])
def test_refuses_other_types(kind):
    with pytest.raises(ValueError, match="expected int64"):
        runs_of_column(pa.array([], kind))
    with pytest.raises(ValueError, match="expected float"):
        runs_of_column(pa.array([], pa.list_(pa.int64())), pa.array([], kind))

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from windrow.comm.errors import DataError
from windrow.recsys.batches.deduplication.ikjt import deduplicate, from_variable_batch


def to_variable_batch(groups):
    """TorchRec's container of the groups of some samples, as the docstring of the module draws it."""
    torchrec_adapter = pytest.importorskip("windrow.recsys.torchrec_adapter")
    keys = [key for group in groups for key in group.keys]
    weights = [group.unique.weights_or_none() for group in groups]
    return torchrec_adapter.KeyedJaggedTensor(
        keys=keys,
        values=torch.cat([group.unique.values() for group in groups]),
        weights=None if weights[0] is None else torch.cat(weights),
        lengths=torch.cat([group.unique.lengths() for group in groups]),
        stride_per_key_per_rank=[[group.num_unique] for group in groups for _ in group.keys],
        inverse_indices=(keys, torch.stack([group.inverse for group in groups for _ in group.keys])),
    )


CART = [[7, 3], [7, 3], [], [7, 3], [4]]
SELLERS = [[1, 1], [1, 1], [], [1, 1], [9]]


def test_is_what_the_docstrings_draw(lists_of, jagged_of):
    jagged = jagged_of({"cart": CART, "sellers": SELLERS})
    group = deduplicate(jagged, ["cart", "sellers"])
    assert group.unique.values().tolist() == [7, 3, 4, 1, 1, 9]
    assert group.unique.lengths().tolist() == [2, 0, 1, 2, 0, 1]
    assert group.inverse.tolist() == [0, 0, 1, 0, 2]
    assert (group.keys, group.num_samples, group.num_unique) == (("cart", "sellers"), 5, 3)
    assert lists_of(group.expand()) == lists_of(jagged)


GROUP = ("history", "cart")


def rows_of(lists, group):
    """Each sample's lists of a group."""
    return list(zip(*(lists[feature] for feature in group), strict=True))


def first_occurrences(rows):
    kinds = list(dict.fromkeys(rows))
    return kinds, [kinds.index(row) for row in rows]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@given(data=st.data())
def test_holds_each_distinct_row_once_in_order_of_the_first(dtype, random_groups, jagged_of, lists_of, data):
    jagged = jagged_of(*data.draw(random_groups), dtype=dtype)
    found = deduplicate(jagged, GROUP)
    rows, inverse = first_occurrences(rows_of(lists_of(jagged), GROUP))
    assert found.keys == GROUP
    assert found.num_samples == jagged.stride()
    assert rows_of(lists_of(found.unique), GROUP) == rows
    assert found.inverse.tolist() == inverse
    assert lists_of(found.expand()) == {feature: lists_of(jagged)[feature] for feature in GROUP}


@pytest.mark.parametrize(
    ("group", "message"),
    [([], "no features"), (["a", "c"], "'c' is 0 times among the keys a, b"), (["a", "a"], "2 times in a, a")],
)
def test_refuses_groups_that_it_cannot_make(jagged_of, group, message):
    with pytest.raises(DataError, match=message):
        deduplicate(jagged_of({"a": [[1], [2]], "b": [[3], []]}), group)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_gives_the_same_on_a_gpu(jagged_of):
    jagged = jagged_of({"cart": CART, "sellers": SELLERS})
    found = deduplicate(jagged.to(torch.device("cuda")), ["cart", "sellers"])
    expected = deduplicate(jagged, ["cart", "sellers"])
    assert found.inverse.is_cuda
    assert found.unique.values().is_cuda
    assert found.inverse.tolist() == expected.inverse.tolist()
    assert found.unique.values().tolist() == expected.unique.values().tolist()


GROUPS = (("history",), ("cart", "sellers"))


@given(data=st.data())
def test_there_and_back(random_groups, jagged_of, lists_of, data):
    jagged = jagged_of(*data.draw(random_groups))
    keys = jagged.keys()
    # Features of rows of their own become one group.
    for given_groups, groups in ((GROUPS, GROUPS), ([[key] for key in keys], [keys])):
        variable = to_variable_batch([deduplicate(jagged, group) for group in given_groups])
        for found, group in zip(from_variable_batch(variable, groups), groups, strict=True):
            expected = deduplicate(jagged, group)
            assert found.inverse.tolist() == expected.inverse.tolist()
            assert lists_of(found.unique) == lists_of(expected.unique)


def test_torchrec_looks_up_the_same_rows(jagged_of):
    torchrec = pytest.importorskip("torchrec", reason="needs torchrec")
    jagged = jagged_of({"a": [[1, 2], [1, 2], [], [3]], "b": [[0], [0], [0], [1]]})
    tables = [
        torchrec.EmbeddingBagConfig(num_embeddings=4, embedding_dim=4, name=name, feature_names=[name])
        for name in ("a", "b")
    ]
    # Its tables are drawn from the global generator.
    with torch.random.fork_rng(devices=[]):
        bags = torchrec.EmbeddingBagCollection(tables=tables)
    variable = to_variable_batch([deduplicate(jagged, ["a"]), deduplicate(jagged, ["b"])])
    torch.testing.assert_close(bags(variable).values(), bags(jagged).values(), rtol=0, atol=0)


def test_refuses_what_does_not_fit(jagged_of):
    jagged = jagged_of({"a": [[1], [2]], "b": [[3], []]})
    with pytest.raises(DataError, match="without inverse_indices"):
        from_variable_batch(jagged, [["a"]])
    with pytest.raises(DataError, match="'b' is 0 times among the keys a"):
        from_variable_batch(to_variable_batch([deduplicate(jagged, ["a"])]), [["b"]])
    wrong = to_variable_batch([deduplicate(jagged, ["a"])])
    wrong.inverse_indices()[1][0, 1] = 2
    with pytest.raises(DataError, match="feature 'a': inverse holds 2, but there are rows 0 to 1"):
        from_variable_batch(wrong, [["a"]])


def test_a_variable_batch_is_refused(jagged_of):
    variable = to_variable_batch([deduplicate(jagged_of({"a": [[1], [1], [2]]}), ["a"])])
    with pytest.raises(DataError, match="from_variable_batch"):
        deduplicate(variable, ["a"])

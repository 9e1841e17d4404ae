import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from windrow.comm.errors import DataError
from windrow.recsys.batches.deduplication.deduplicate import (
    deduplicate,
    from_variable_batch,
    to_variable_batch,
)
from windrow.recsys.batches.deduplication.ikjt import select_lists

GROUPS = (("history",), ("cart", "sellers"))


@given(data=st.data())
def test_there_and_back(random_groups, jagged_of, lists_of, data):
    jagged = jagged_of(*data.draw(random_groups))
    groups = [deduplicate(jagged, group) for group in GROUPS]
    for found, expected in zip(from_variable_batch(to_variable_batch(groups), GROUPS), groups, strict=True):
        assert found.inverse.tolist() == expected.inverse.tolist()
        assert lists_of(found.unique) == lists_of(expected.unique)


@given(data=st.data())
def test_features_of_rows_of_their_own_become_one_group(random_groups, jagged_of, lists_of, data):
    jagged = jagged_of(*data.draw(random_groups))
    keys = jagged.keys()
    alone = to_variable_batch([deduplicate(jagged, [feature]) for feature in keys])
    (found,) = from_variable_batch(alone, [keys])
    expected = deduplicate(jagged, keys)
    assert found.inverse.tolist() == expected.inverse.tolist()
    assert lists_of(found.unique) == lists_of(expected.unique)


def test_is_what_the_docstring_draws(jagged_of):
    jagged = jagged_of(
        {"cart": [[7, 3], [7, 3], [], [7, 3], [4]], "sellers": [[1, 1], [1, 1], [], [1, 1], [9]]}
    )
    variable = to_variable_batch([deduplicate(jagged, ["cart", "sellers"])])
    assert variable.values().tolist() == [7, 3, 4, 1, 1, 9]
    assert variable.lengths().tolist() == [2, 0, 1, 2, 0, 1]
    assert variable.stride_per_key_per_rank() == [[3], [3]]
    keys, inverse = variable.inverse_indices()
    assert keys == ["cart", "sellers"]
    assert inverse.tolist() == [[0, 0, 1, 0, 2]] * 2


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
    weighted = jagged_of({"c": [[1], [2]]}, {"c": [[0.5], [0.5]]})
    with pytest.raises(DataError, match="no groups"):
        to_variable_batch([])
    with pytest.raises(DataError, match="features different"):
        to_variable_batch([deduplicate(jagged, ["a"])] * 2)
    with pytest.raises(DataError, match="only some of the groups"):
        to_variable_batch([deduplicate(jagged, ["a"]), deduplicate(weighted, ["c"])])
    short = select_lists(jagged, ["b"], torch.tensor([0]))
    with pytest.raises(DataError, match="samples must be as many"):
        to_variable_batch([deduplicate(jagged, ["a"]), deduplicate(short, ["b"])])
    with pytest.raises(DataError, match="without inverse_indices"):
        from_variable_batch(jagged, [["a"]])
    with pytest.raises(DataError, match="name some of these"):
        from_variable_batch(to_variable_batch([deduplicate(jagged, ["a"])]), [["b"]])
    wrong = to_variable_batch([deduplicate(jagged, ["a"])])
    wrong.inverse_indices()[1][0, 1] = 2
    with pytest.raises(DataError, match="feature 'a': inverse holds 2, but there are rows 0 to 1"):
        from_variable_batch(wrong, [["a"]])

"""Laws of pieces under random plans and groups: every column of every group's matrix is copied once."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from windrow.partition.tables.plan import Plan, Shard
from windrow.recsys.sharded.layout import make_layout
from windrow.recsys.sharded.pooled import pieces_of
from windrow.recsys.tables.options import EmbeddingBagConfig


@given(data=st.data())
def test_pieces_copy_each_column_once_and_add_what_else_there_is(small, data):
    tables, plan, size, groups = data.draw(small.plans())
    layout = make_layout(tables, plan, size, groups)
    owners = (*layout.owners, layout.replicated)
    # (group, its column) -> column of the collection, to compare with lookups.
    place = {
        (layout.groups[feature], inside): column
        for (_, feature, columns), in_group in zip(layout.outputs, layout.columns_in_group(), strict=True)
        for column, inside in zip(range(*columns), range(*in_group), strict=True)
    }
    assert len(place) == layout.width
    copied = np.zeros(layout.width, int)
    moved = [np.zeros((owner.width, layout.width), int) for owner in owners]
    for piece in pieces_of(layout):
        band = owners[piece.owner].bands[piece.band]
        assert band.group == piece.group
        for column, inside in zip(range(*piece.columns), range(*piece.output), strict=True):
            output = place[piece.group, inside]
            assert copied[output] == piece.add
            copied[output] = 1
            moved[piece.owner][band.columns[0] + column, output] += 1
    assert copied.all()
    for owner, matrix in zip(owners, moved, strict=True):
        expected = np.zeros_like(matrix)
        for lookup in owner.lookups:
            expected[range(*lookup.columns), range(*lookup.output)] = 1
        assert (matrix == expected).all()


def test_neighbours_that_go_the_same_way_are_one_piece():
    tables = [
        EmbeddingBagConfig(name=name, num_embeddings=3, embedding_dim=4, feature_names=[name, name + "2"])
        for name in "ab"
    ]
    plan = Plan((Shard("a", 1, (0, 3), (0, 4)), Shard("b", 1, (0, 3), (0, 4))))
    (piece,) = pieces_of(make_layout(tables, plan, 2))
    assert (piece.owner, piece.columns, piece.output, piece.add) == (1, (0, 16), (0, 16), False)


def test_neighbours_of_two_groups_are_two_pieces():
    tables = [
        EmbeddingBagConfig(name=name, num_embeddings=3, embedding_dim=4, feature_names=[name])
        for name in "ab"
    ]
    plan = Plan((Shard("a", 1, (0, 3), (0, 4)), Shard("b", 1, (0, 3), (0, 4))))
    first, second = pieces_of(make_layout(tables, plan, 2, [("b",)]))
    assert (first.band, first.group, first.output) == (0, 0, (0, 4))
    assert (second.band, second.group, second.output) == (1, 1, (0, 4))

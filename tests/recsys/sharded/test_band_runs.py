"""Laws of runs of columns under random plans and groups: every column of every group's matrix is copied once."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from windrow.partition.tables.plan import Plan, Shard
from windrow.recsys.sharded.layout import make_layout
from windrow.recsys.sharded.pooled import band_runs
from windrow.recsys.tables.options import EmbeddingBagConfig


@given(data=st.data())
def test_runs_copy_each_column_once_and_add_what_else_there_is(small, data):
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
    for owner, moves, of_owner in zip(owners, moved, band_runs(layout), strict=True):
        for band, runs in zip(owner.bands, of_owner, strict=True):
            for source, target, width, add in runs.tolist():
                for column in range(width):
                    output = place[band.group, target + column]
                    assert copied[output] == add
                    copied[output] = 1
                    moves[band.columns[0] + source + column, output] += 1
    assert copied.all()
    for owner, matrix in zip(owners, moved, strict=True):
        expected = np.zeros_like(matrix)
        for lookup in owner.lookups:
            expected[range(*lookup.columns), range(*lookup.output)] = 1
        assert (matrix == expected).all()


def test_neighbours_that_go_the_same_way_are_one_run():
    tables = [
        EmbeddingBagConfig(name=name, num_embeddings=3, embedding_dim=4, feature_names=[name, name + "2"])
        for name in "ab"
    ]
    plan = Plan((Shard("a", 1, (0, 3), (0, 4)), Shard("b", 1, (0, 3), (0, 4))))
    _, (runs,), _ = band_runs(make_layout(tables, plan, 2))
    assert runs.tolist() == [[0, 0, 16, 0]]


def test_neighbours_of_two_groups_are_two_runs():
    tables = [
        EmbeddingBagConfig(name=name, num_embeddings=3, embedding_dim=4, feature_names=[name])
        for name in "ab"
    ]
    plan = Plan((Shard("a", 1, (0, 3), (0, 4)), Shard("b", 1, (0, 3), (0, 4))))
    _, (first, second), _ = band_runs(make_layout(tables, plan, 2, [("b",)]))
    assert first.tolist() == second.tolist() == [[0, 0, 4, 0]]

"""Laws of the layout under random plans: every column filled once, every id asked of who holds its row."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from windrow.partition.tables.plan import Plan, Shard, check_plan
from windrow.recsys.embedding_configs import EmbeddingBagConfig
from windrow.recsys.sharded.collection import table_specs
from windrow.recsys.sharded.layout import make_layout, pieces_of
from windrow.recsys.tables.options import TableOptions


@st.composite
def plans(draw):
    """Tables, number of ranks, and a plan in which every table is cut into stripes, and those again."""
    size = draw(st.integers(1, 4))
    names = ["a", "b", "c"]
    tables, shards, replicated = [], [], []
    for name in names[: draw(st.integers(1, 3))]:
        rows, dim = draw(st.integers(1, 9)), 4 * draw(st.integers(1, 4))
        features = draw(st.lists(st.sampled_from("uvwx"), min_size=1, max_size=3, unique=True))
        tables.append(
            EmbeddingBagConfig(name=name, num_embeddings=rows, embedding_dim=dim, feature_names=features)
        )
        if draw(st.booleans()) and draw(st.booleans()):
            replicated.append(name)
            continue
        between = draw(st.sets(st.integers(1, rows - 1), max_size=2)) if rows > 1 else set()
        row_cuts = [0, *sorted(between), rows]
        for top, bottom in pairwise(row_cuts):
            inner = draw(st.sets(st.integers(1, dim // 4 - 1), max_size=2)) if dim > 4 else set()
            cuts = [0, *(4 * cut for cut in sorted(inner)), dim]
            for left, right in pairwise(cuts):
                shards.append(Shard(name, draw(st.integers(0, size - 1)), (top, bottom), (left, right)))
    return tables, Plan(tuple(draw(st.permutations(shards))), tuple(replicated)), size


@given(plans())
def test_every_row_fills_every_column_of_its_features_once(drawn):
    tables, plan, size = drawn
    check_plan(plan, table_specs(tables, TableOptions()), size)
    layout = make_layout(tables, plan, size)
    most = max(table.num_embeddings for table in tables)
    filled = np.zeros((most, layout.width), int)
    for owner in (*layout.owners, layout.replicated):
        assert list(owner.lookups) == sorted(owner.lookups, key=lambda lookup: lookup.member)
        for lookup in owner.lookups:
            request, member = owner.requests[lookup.request], owner.members[lookup.member]
            assert request.rows == member.rows
            assert lookup.dim == lookup.output[1] - lookup.output[0] == member.dim
            filled[slice(*member.rows), slice(*lookup.output)] += 1
    for number, feature, columns in layout.outputs:
        assert layout.features[feature] in tables[number].feature_names
        assert (filled[: tables[number].num_embeddings, slice(*columns)] == 1).all()
        assert not filled[tables[number].num_embeddings :, slice(*columns)].any()


@given(plans())
def test_pieces_copy_each_column_once_and_add_what_else_there_is(drawn):
    tables, plan, size = drawn
    layout = make_layout(tables, plan, size)
    owners = (*layout.owners, layout.replicated)
    copied = np.zeros(layout.width, int)
    moved = [np.zeros((owner.width, layout.width), int) for owner in owners]
    for piece in pieces_of(layout):
        for column, output in zip(range(*piece.columns), range(*piece.output), strict=True):
            assert copied[output] == piece.add
            copied[output] = 1
            moved[piece.owner][column, output] += 1
    assert copied.all()
    for owner, matrix in zip(owners, moved, strict=True):
        expected = np.zeros_like(matrix)
        for lookup in owner.lookups:
            expected[range(*lookup.columns), range(*lookup.output)] = 1
        assert (matrix == expected).all()


@given(plans())
def test_a_process_alone_with_whole_tables_needs_no_exchange(drawn):
    tables, plan, size = drawn
    layout = make_layout(tables, plan, size)
    whole = all(plan.kind_of(table.name) in {"replicated", "table-wise"} for table in tables)
    assert layout.is_direct == (size == 1 and whole)


def test_neighbours_that_go_the_same_way_are_one_piece():
    tables = [
        EmbeddingBagConfig(name=name, num_embeddings=3, embedding_dim=4, feature_names=[name, name + "2"])
        for name in "ab"
    ]
    plan = Plan((Shard("a", 1, (0, 3), (0, 4)), Shard("b", 1, (0, 3), (0, 4))))
    (piece,) = pieces_of(make_layout(tables, plan, 2))
    assert (piece.owner, piece.columns, piece.output, piece.add) == (1, (0, 16), (0, 16), False)

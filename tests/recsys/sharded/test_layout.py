"""What results do not tell of a layout: copies in few pieces, and when nothing is exchanged."""

import pytest

from windrow.partition.tables.plan import Plan, Shard
from windrow.recsys.sharded.layout import make_layout
from windrow.recsys.sharded.pooled import band_runs
from windrow.recsys.tables.options import EmbeddingBagConfig


@pytest.mark.parametrize(
    ("kind", "size", "groups", "is_direct"),
    [
        ("table", 1, (), True),
        ("replicated", 1, (), True),
        ("table", 1, [["unknown"]], True),
        ("table", 1, [["tag"]], False),
        ("table", 2, (), False),
        ("one rank", 2, (), False),
        ("replicated", 2, (), False),
        ("column", 1, (), False),
        ("many pieces", 1, (), False),
        ("rows on every rank", 1, (), False),
    ],
)
def test_a_process_alone_with_whole_tables_needs_no_exchange(small, kind, size, groups, is_direct):
    assert make_layout(small.tables, small.make_plan(kind, size), size, groups).is_direct == is_direct


@pytest.mark.parametrize(("groups", "runs"), [((), [[[0, 0, 8]]]), ([("b",)], [[[0, 0, 4]], [[0, 0, 4]]])])
def test_neighbours_of_a_group_that_go_the_same_way_are_one_run(groups, runs):
    tables = [EmbeddingBagConfig(name=name, num_embeddings=3, embedding_dim=4, feature_names=[name]) for name in "ab"]
    plan = Plan((Shard("a", 1, (0, 3), (0, 4)), Shard("b", 1, (0, 3), (0, 4))))
    _, of_owner, _ = band_runs(make_layout(tables, plan, 2, groups))
    assert [found.tolist() for found in of_owner] == runs


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("kind", ["row", "grid", "mixed", "many pieces", "rows on every rank"])
def test_vectors_of_an_added_band_go_to_places_of_their_own(small, kind, size):
    """They are added on several threads: two pieces of one list may not be in one band."""
    layout = make_layout(small.tables, small.make_plan(kind, size), size)
    added = 0
    for owner in (*layout.owners, layout.replicated):
        for band in owner.bands:
            lookups = owner.lookups[slice(*band.lookups)]
            if band.added:
                places = [(lookup.output, lookup.part) for lookup in lookups]
                assert len(set(places)) == len(places)
                assert len({lookup.dim for lookup in lookups}) == 1
                added += 1
    assert added or size == 1


def test_two_ranges_of_rows_in_pieces_of_two_widths_are_in_bands_of_their_own():
    table = EmbeddingBagConfig(name="t", num_embeddings=9, embedding_dim=12, feature_names=["f"])
    rows, columns = ((0, 3), (3, 6), (6, 9)), ((0, 4), (4, 12))
    shards = [Shard("t", int(number == 2), some, part) for number, some in enumerate(rows) for part in columns]
    owner, other = make_layout([table], Plan(tuple(shards)), 2).owners
    assert [len(found.bands) for found in (owner, other)] == [4, 2]

"""Laws of the layout under random plans: every column filled once, every id asked of who holds its row."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from windrow.partition.tables.plan import check_plan
from windrow.recsys.sharded.collection import table_specs
from windrow.recsys.sharded.layout import make_layout
from windrow.recsys.tables.options import TableOptions


@given(data=st.data())
def test_every_row_fills_every_column_of_its_features_once(small, data):
    tables, plan, size, groups = data.draw(small.plans())
    check_plan(plan, table_specs(tables, TableOptions()), size)
    layout = make_layout(tables, plan, size, groups)
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


@given(data=st.data())
def test_batches_and_bands_cover_lookups_and_columns(small, data):
    tables, plan, size, groups = data.draw(small.plans())
    layout = make_layout(tables, plan, size, groups)
    group_of = {feature: number for number, names in enumerate(groups, 1) for feature in names}
    assert layout.groups == tuple(group_of.get(feature, 0) for feature in layout.features)
    for owner in (*layout.owners, layout.replicated):
        assert list(owner.request_groups) == sorted(owner.request_groups)
        expected_groups = []
        for number, batch in enumerate(owner.batches):
            lookups = owner.lookups[slice(*batch.lookups)]
            assert batch.columns == (lookups[0].columns[0], lookups[-1].columns[1])
            names = {owner.members[lookup.member].name for lookup in lookups}
            for table in tables:
                if table.name in names:
                    assert batch.groups == tuple(sorted({group_of.get(f, 0) for f in table.feature_names}))
            for lookup in lookups:
                expected_groups += [(number, owner.request_groups[lookup.request])] * lookup.dim
        found = [(band.batch, band.group) for band in owner.bands for _ in range(band.width)]
        assert found == expected_groups
        assert sum(stop - start for start, stop in (b.lookups for b in owner.batches)) == len(owner.lookups)


@given(data=st.data())
def test_a_process_alone_with_whole_tables_needs_no_exchange(small, data):
    tables, plan, size, groups = data.draw(small.plans())
    layout = make_layout(tables, plan, size, groups)
    whole = all(len(plan.shards_of(t.name)) + len(plan.replicas_of(t.name)) == 1 for t in tables)
    assert layout.is_direct == (size == 1 and whole and not any(layout.groups))

"""Packing against sorting ids out bag by bag."""

import numpy as np
import pytest

from windrow.recsys.sharded.layout import make_layout
from windrow.recsys.sharded.packing import ONE_EACH, MessageFormat, pack
from windrow.recsys.sharded.samples import read_samples

SIZE = 3


@pytest.mark.parametrize("kind", ["table", "row", "grid", "mixed", "rows on every rank"])
@pytest.mark.parametrize("id_type", [np.int32, np.int64])
@pytest.mark.parametrize("with_lengths", [False, True])
def test_each_owner_gets_the_ids_below_and_above_its_rows(small, kind, id_type, with_lengths):
    layout = make_layout(small.tables, small.make_plan(kind, SIZE), SIZE)
    drawn = small.draw(7, 6)
    samples = read_samples(small.jagged(drawn, weighted=True), (), layout, is_weighted=True)
    form = MessageFormat(id_type, weighted=True, with_lengths=with_lengths)
    for owner, message in zip(layout.owners, pack(samples, layout.owners, layout.index, form), strict=True):
        ids, weights, lengths, header = [], [], [], [6]
        for request in owner.requests:
            feature = layout.features[request.feature]
            start, stop = request.rows
            bags = [[i for i in bag if start <= i < stop] for bag in drawn[feature]]
            ids += [i - start for bag in bags for i in bag]
            weights += [w for bag in bags for w in small.weight_of(feature, bag)]
            if with_lengths and request.whole and all(len(bag) == 1 for bag in bags):
                header.append(ONE_EACH)
            else:
                header.append(sum(map(len, bags)))
                lengths += [len(bag) for bag in bags] if with_lengths else []
        assert message.header.tolist() == header
        assert message.ids.dtype == id_type
        assert message.ids.tolist() == ids
        assert message.weights.tolist() == weights
        assert message.lengths.tolist() == lengths


def test_no_samples(small):
    layout = make_layout(small.tables, small.make_plan("row", SIZE), SIZE)
    samples = read_samples(small.jagged(small.draw(0, 0)), (), layout, is_weighted=False)
    for message in pack(
        samples, layout.owners, layout.index, MessageFormat(np.int32, weighted=False, with_lengths=True)
    ):
        assert message.buffer.numel() == 0
        assert message.num_rows.tolist() == [0]

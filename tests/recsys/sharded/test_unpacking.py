"""What arrives at an owner, against looking through every rank's samples."""

import numpy as np
import pytest
import torch

from windrow.recsys.sharded.layout import make_layout
from windrow.recsys.sharded.packing import MessageFormat, pack, unpack
from windrow.recsys.sharded.samples import read_samples

SIZE = 3
SAMPLES = [4, 0, 6]


@pytest.mark.parametrize("kind", ["table", "one rank", "column", "grid", "mixed"])
@pytest.mark.parametrize("pooled", [True, False])
def test_lookups_outside_ranks_inside(small, kind, pooled):
    layout = make_layout(small.tables, small.make_plan(kind, SIZE), SIZE)
    form = MessageFormat(np.int32, weighted=pooled, with_lengths=pooled)
    drawn = [small.draw(rank, number) for rank, number in enumerate(SAMPLES)]
    sent = [
        pack(
            read_samples(small.jagged(d, weighted=pooled), (), layout, is_weighted=pooled),
            layout.owners,
            layout.index,
            form,
        )
        for d in drawn
    ]
    for number, owner in enumerate(layout.owners):
        inputs = unpack([messages[number] for messages in sent], owner, form)
        assert len(inputs) == (bool(owner.lookups) if pooled else 1)
        if not inputs:
            continue
        (found,) = inputs
        values, weights, lengths = [], [], []
        for lookup in owner.lookups:
            request = owner.requests[lookup.request]
            feature = layout.features[request.feature]
            for samples in drawn:
                start, stop = request.rows
                bags = [[i for i in bag if start <= i < stop] for bag in samples[feature]]
                values += [i - start for bag in bags for i in bag]
                weights += [w for bag in bags for w in small.weight_of(feature, bag)]
                lengths += [len(bag) for bag in bags] if pooled else [sum(map(len, bags))]
        assert found.values.tolist() == values
        assert found.offsets.tolist() == [0, *np.cumsum(lengths, dtype=int)]
        assert found.num_bags == (tuple(SAMPLES) if pooled else (1,) * SIZE)
        assert found.counts.sum() == len(values)
        if pooled:
            assert found.weights.tolist() == weights
        else:
            assert found.weights is None


def test_a_part_of_the_lookups(small):
    layout = make_layout(small.tables, small.make_plan("table", 1), 1)
    form = MessageFormat(np.int64, weighted=False, with_lengths=False)
    sent = [
        pack(
            read_samples(small.jagged(small.draw(r, n)), (), layout, is_weighted=False),
            layout.owners,
            layout.index,
            form,
        )[0]
        for r, n in enumerate(SAMPLES)
    ]
    (owner,) = layout.owners
    (everything,) = unpack(sent, owner, form)
    segments = everything.values.split(everything.counts.sum(axis=0).tolist())
    part = everything.select([3, 1])
    assert torch.equal(part.values, torch.cat([segments[3], segments[1]]))
    assert part.offsets.diff().tolist() == everything.counts[:, [3, 1]].T.reshape(-1).tolist()
    assert part.offsets.dtype == torch.int64

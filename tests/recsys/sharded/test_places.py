"""Where rows belong; how they travel is tested with the collection."""

import torch

from windrow.recsys.sharded.layout import make_layout
from windrow.recsys.sharded.samples import read_samples
from windrow.recsys.sharded.sequence_exchange import find_places, targets_of


def test_every_row_has_one_place(small):
    size = 3
    layout = make_layout(small.equal_dims, small.make_plan("grid", size, small.equal_dims), size)
    drawn = small.draw(3, 8)
    samples = read_samples(small.jagged(drawn), (), layout, is_weighted=False)
    ids = [torch.tensor([i for bag in drawn[layout.features[f]] for i in bag]) for _, f, _ in layout.outputs]
    outputs = [torch.zeros(len(i), 12) for i in ids]
    for owner in layout.owners:
        places = find_places(owner, targets_of(layout, owner), samples, torch.device("cpu"))
        for place, lookup in zip(places, owner.lookups, strict=True):
            rows = torch.arange(*owner.members[lookup.member].rows)
            start, stop = owner.requests[lookup.request].rows
            wanted = ids[place.target.output]
            wanted = wanted[(wanted >= start) & (wanted < stop)]
            before = place.read(outputs)
            assert not before.any()
            block = (rows[wanted - start] + 1.0).unsqueeze(1).expand(-1, lookup.dim)
            place.write(block, outputs)
            assert torch.equal(place.read(outputs), block.reshape(-1))
    for wanted, output in zip(ids, outputs, strict=True):
        assert torch.equal(output, (wanted + 1.0).unsqueeze(1).expand(-1, 12))

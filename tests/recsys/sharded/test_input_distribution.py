"""Messages over every kind of world are those that were packed."""

import numpy as np
import torch

from windrow.recsys.sharded.input_distribution import InputDistribution
from windrow.recsys.sharded.layout import make_layout
from windrow.recsys.sharded.packing import MessageFormat, pack, unpack
from windrow.recsys.sharded.samples import read_samples

SAMPLES = [4, 0, 6, 1]


def test_owners_get_what_every_rank_packed(spmd, small):
    def body(world):
        form = MessageFormat(np.int32, weighted=False, with_lengths=True)
        layout = make_layout(small.tables, small.make_plan("mixed", world.size), world.size)
        samples = [
            read_samples(small.jagged(small.draw(rank, SAMPLES[rank])), (), layout, is_weighted=False)
            for rank in range(world.size)
        ]
        distribution = InputDistribution(world, layout, samples[world.rank], form, stage="test")
        distribution.start_ids()
        found = distribution.wait()
        sent = [pack(theirs, layout.owners, layout.index, form)[world.rank] for theirs in samples]
        expected = unpack(sent, layout.owners[world.rank], form)
        for ours, theirs in zip(found, expected, strict=True):
            assert torch.equal(ours.values, theirs.values)
            assert torch.equal(ours.offsets, theirs.offsets)
            assert ours.num_bags == theirs.num_bags
        assert distribution.num_rows.tolist() == [[n] for n in SAMPLES[: world.size]]

    spmd(body)

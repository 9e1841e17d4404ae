"""What travels is counted in rows, alike at both ends; its values are tested with the collection."""

import torch

from windrow.comm.meter import Meter
from windrow.recsys.sharded.samples import read_samples
from windrow.recsys.sharded.sequence_collection import EmbeddingCollection
from windrow.recsys.sharded.sequence_exchange import find_places, targets_of
from windrow.recsys.tables.options import TableOptions


def test_rows_that_travel(spmd, small):
    def body(world):
        collection = EmbeddingCollection(
            small.equal_dims,
            world=world,
            plan=small.make_plan("grid", world.size, small.equal_dims),
            optimizer=TableOptions(optimizer="sgd", learning_rate=0.5),
        )
        jagged = small.jagged(small.draw(world.rank, [5, 0, 3, 7][world.rank]))
        world.meter = Meter()
        sum(rows.values().sum() for rows in collection(jagged).values()).backward()
        layout = collection.layout
        samples = read_samples(jagged, (), layout, is_weighted=False)
        outputs = [torch.zeros(len(rows.values()), 12) for rows in collection(jagged).values()]
        awaited = sum(
            place.read(outputs).numel() // lookup.dim
            for number, owner in enumerate(layout.owners)
            if number != world.rank
            for place, lookup in zip(
                find_places(owner, targets_of(layout, owner), samples, torch.device("cpu")),
                owner.lookups,
                strict=True,
            )
        )
        vectors, gradients = (
            world.meter.totals(f"embedding rows: {what}") for what in ("vectors", "gradients")
        )
        # The results of two forward passes came, and the gradients of one went back.
        assert vectors.rows_received == 2 * awaited
        assert gradients.rows_sent == awaited
        return vectors.rows_sent, vectors.rows_received, gradients.rows_sent, gradients.rows_received

    sent, received, back, arrived = (sum(counts) for counts in zip(*spmd(body), strict=True))
    assert sent == received == 2 * back
    assert back == arrived

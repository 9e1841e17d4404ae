"""Three minibatches in flight give what one after the other gives."""

import pytest
import torch

from windrow.comm.errors import PeerFailedError
from windrow.comm.loopback import Loopback
from windrow.recsys.sharded.pooled import EmbeddingBagCollection
from windrow.recsys.tables.options import TableOptions

STEPS = 5


def batch_of(small, world, step):
    return small.jagged(small.draw(10 * step + world.rank, (step + world.rank) % 5))


def make(small, world, kind):
    plan = small.make_plan(kind, world.size)
    return EmbeddingBagCollection(
        small.tables, world=world, plan=plan, optimizer=TableOptions(optimizer="sgd", learning_rate=0.3)
    )


def learn(values) -> torch.Tensor:
    values.square().sum().backward()
    return values.detach().clone()


@pytest.mark.parametrize("kind", ["table", "grid"])
def test_pipeline(spmd, small, kind):
    def body(world):
        collection = make(small, world, kind)
        expected = [learn(collection(batch_of(small, world, step)).values()) for step in range(STEPS)]
        collection = make(small, world, kind)
        first = collection.start_counts(batch_of(small, world, 0))
        first.start_ids()
        flying = [first, collection.start_counts(batch_of(small, world, 1))]
        for step in range(STEPS):
            now = flying.pop(0)
            if flying:
                flying[0].start_ids()
            if step + 2 < STEPS:
                flying.append(collection.start_counts(batch_of(small, world, step + 2)))
            now.start_lookup()
            (rows,) = now.finish()
            assert torch.equal(learn(rows.rows), expected[step])

    spmd(body)


def test_a_rank_that_leaves_out_its_backward_pass_is_named(small):
    def body(world):
        result = make(small, world, "table")(batch_of(small, world, 1)).values()
        if world.rank == 0:
            learn(result)

    with pytest.raises(PeerFailedError, match="rank 1 has finished"):
        Loopback.run(2, body)

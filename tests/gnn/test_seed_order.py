"""Laws of the order of seeds, with simulated ranks."""

import re
from itertools import pairwise

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from windrow.comm.errors import DataError, RecipeError
from windrow.comm.rows import offsets_from_counts
from windrow.gnn.seed_order import SeedOrder


class Split:
    """A graph's training vertices in the user's order, and a partition of all its vertices."""

    def __init__(self, assignment, is_train, ranks):
        self.ranks = ranks
        by_part = sorted(range(len(assignment)), key=assignment.__getitem__)
        self.original_ids = torch.tensor(by_part)
        self.offsets = offsets_from_counts([assignment.count(part) for part in range(ranks)])
        self.train_ids = torch.tensor([new for new, old in enumerate(by_part) if is_train[old]])

    def has_training_vertices_on_all_ranks(self):
        return all(((self.train_ids >= a) & (self.train_ids < b)).any() for a, b in pairwise(self.offsets))

    def orders(self, **options):
        return [
            SeedOrder(self.train_ids, self.original_ids, offsets=self.offsets, rank=rank, **options)
            for rank in range(self.ranks)
        ]

    def originals(self, ids):
        return self.original_ids[ids].tolist()


@st.composite
def splits(draw):
    """The same graph on 1, 2 and 4 ranks."""
    n = draw(st.integers(8, 40))
    is_train = draw(st.lists(st.booleans(), min_size=n, max_size=n))
    assignments = [draw(st.lists(st.integers(0, r - 1), min_size=n, max_size=n)) for r in (1, 2, 4)]
    result = [Split(a, is_train, r) for a, r in zip(assignments, (1, 2, 4), strict=True)]
    assume(all(split.has_training_vertices_on_all_ranks() for split in result))
    return result


OPTIONS = st.fixed_dictionaries({"batch_size": st.integers(4, 50), "seed": st.integers(0, 2**63)})
SCHEMES = pytest.mark.parametrize("scheme", ["global", "local"])
EPOCHS = st.integers(0, 1000)


@settings(max_examples=50)
@given(splits(), OPTIONS, EPOCHS)
def test_global_minibatches_do_not_depend_on_the_number_of_ranks(cases, options, epoch):
    single, *others = cases
    (alone,) = single.orders(scheme="global", **options)
    for split in others:
        orders = split.orders(scheme="global", **options)
        for step in range(alone.steps_per_epoch):
            together = [number for order in orders for number in split.originals(order.seeds(epoch, step))]
            assert sorted(together) == sorted(single.originals(alone.seeds(epoch, step)))
            assert {order.global_batch_size(epoch, step) for order in orders} == {len(together)}


@SCHEMES
@settings(max_examples=50)
@given(cases=splits(), options=OPTIONS, epoch=EPOCHS)
def test_every_training_vertex_is_a_seed_once_per_epoch_and_on_its_owner(scheme, cases, options, epoch):
    for split in cases:
        seen = []
        for rank, order in enumerate(split.orders(scheme=scheme, **options)):
            start, stop = split.offsets[rank : rank + 2]
            for step in range(order.steps_per_epoch):
                seeds = order.seeds(epoch, step)
                assert seeds.dtype == torch.int64
                assert bool(((seeds >= start) & (seeds < stop)).all())
                seen += seeds.tolist()
        assert sorted(seen) == split.train_ids.tolist()


@SCHEMES
@settings(max_examples=50)
@given(cases=splits(), options=OPTIONS, epoch=EPOCHS)
def test_all_ranks_take_the_same_steps_of_near_equal_size(scheme, cases, options, epoch):
    for split in cases:
        orders = split.orders(scheme=scheme, **options)
        (steps,) = {order.steps_per_epoch for order in orders}
        assert steps == -(-len(split.train_ids) // options["batch_size"])
        sizes = [[len(order.seeds(epoch, step)) for step in range(steps)] for order in orders]
        together = [sum(of_ranks) for of_ranks in zip(*sizes, strict=True)]
        for order in orders:
            assert [order.global_batch_size(epoch, step) for step in range(steps)] == together
        assert min(together) >= 1
        assert max(together) <= options["batch_size"] + (split.ranks - 1 if scheme == "local" else 0)
        for even in sizes if scheme == "local" else [together]:
            assert max(even) - min(even) <= 1


def hundred_vertices_on_two_ranks():
    return Split([vertex % 2 for vertex in range(200)], [vertex % 4 < 2 for vertex in range(200)], 2)


def epoch_order(order, epoch):
    return torch.cat([order.seeds(epoch, step) for step in range(order.steps_per_epoch)]).tolist()


@SCHEMES
def test_the_order_hangs_on_seed_and_epoch_alone(scheme):
    split = hundred_vertices_on_two_ranks()
    first, again, other = (split.orders(batch_size=10, scheme=scheme, seed=seed)[0] for seed in (7, 7, 8))
    orders = [epoch_order(first, 0), epoch_order(first, 1), epoch_order(other, 0)]
    assert len({tuple(order) for order in orders}) == 3
    assert epoch_order(again, 1) == orders[1]
    assert epoch_order(again, 0) == orders[0], "asking for a later epoch first changed an earlier one"


def test_the_order_of_the_list_of_training_vertices_does_not_matter():
    split = hundred_vertices_on_two_ranks()
    order = split.orders(batch_size=10, seed=1)[1]
    split.train_ids = split.train_ids.flip(0)
    assert epoch_order(split.orders(batch_size=10, seed=1)[1], 3) == epoch_order(order, 3)


def test_a_shuffle_spreads_each_ranks_vertices_over_the_steps():
    order = hundred_vertices_on_two_ranks().orders(batch_size=50, seed=3)[0]
    sizes = [len(order.seeds(epoch, 0)) for epoch in range(100)]
    # 25 of 50 on average; the standard deviation of one epoch is 2.5, of the mean 0.25.
    assert abs(sum(sizes) / len(sizes) - 25) < 1.5


def test_ids_of_the_user_need_no_table():
    order = SeedOrder(torch.tensor([5, 1, 3]), offsets=[0, 6], rank=0, batch_size=2, seed=0)
    assert order.steps_per_epoch == 2
    assert sorted(epoch_order(order, 0)) == [1, 3, 5]


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"scheme": "local", "batch_size": 3}, RecipeError, "3 over 4 ranks: order 'local' needs at least one seed"),
        ({}, DataError, "no training vertex on rank 1 (3 vertices), rank 2 (0 vertices), of 2 on all 4 ranks: part"),
        ({"train_ids": torch.empty(0, dtype=torch.int64)}, DataError, "the training set is empty"),
    ],
)
def test_what_cannot_be_used_is_refused(changes, error, message):
    usual = {"train_ids": torch.tensor([1, 5]), "offsets": [0, 2, 5, 5, 6], "rank": 0, "batch_size": 4, "seed": 0}
    with pytest.raises(error, match=re.escape(message)):
        SeedOrder(**(usual | changes))

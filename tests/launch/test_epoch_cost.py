"""windrow.launch.epoch_cost: parts of an epoch add up, ranks are put together."""

from windrow.comm.loopback import Loopback
from windrow.launch.epoch_cost import EpochCost, gather_cost


def test_two_parts_of_an_epoch_add_up() -> None:
    first = EpochCost(seconds=1.0, stage_seconds={"read": 0.5}, rows_fetched=3, bytes_fetched=12)
    second = EpochCost(
        seconds=2.0, stage_seconds={"read": 0.25, "wait": 1.0}, rows_fetched=1, bytes_fetched=4
    )
    assert first + second == EpochCost(
        seconds=3.0, stage_seconds={"read": 0.75, "wait": 1.0}, rows_fetched=4, bytes_fetched=16
    )
    assert EpochCost() + first == first
    assert EpochCost(**first.to_dict()) == first


def test_ranks_are_put_together() -> None:
    costs = [
        EpochCost(seconds=1.0, stage_seconds={"read": 0.5}, rows_fetched=3, bytes_fetched=12),
        EpochCost(seconds=1.5, stage_seconds={"read": 0.2, "wait": 1.0}, rows_fetched=1, bytes_fetched=4),
    ]
    whole = EpochCost(seconds=1.5, stage_seconds={"read": 0.5, "wait": 1.0}, rows_fetched=4, bytes_fetched=16)
    assert Loopback.run(2, lambda world: gather_cost(world, costs[world.rank]), deadline_s=30) == [whole] * 2

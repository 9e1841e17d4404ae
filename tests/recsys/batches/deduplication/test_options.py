"""The section [deduplication]: what goes together."""

import pytest

from windrow.comm.errors import RecipeError
from windrow.recsys.batches.deduplication.options import DeduplicationOptions

GROUPS = (("cart", "sellers"), ("history",))


def test_without_groups_nothing_is_given_or_looked_up_once():
    options = DeduplicationOptions()
    assert options.read_groups() == options.looked_up_groups() == ()


@pytest.mark.parametrize("read", [True, False])
@pytest.mark.parametrize("look_up", [True, False])
def test_groups_of_each_step(read, look_up):
    if look_up and not read:
        return
    options = DeduplicationOptions(groups=GROUPS, read=read, transform=read, look_up=look_up, compute=look_up)
    assert options.read_groups() == (GROUPS if read else ())
    assert options.looked_up_groups() == (GROUPS if look_up else ())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"groups": (("a",), ())}, "empty group"),
        ({"groups": (("a", "b"), ("b",))}, "names 'b' twice"),
        ({"groups": GROUPS, "read": False}, "transform = true needs deduplication.read = true"),
        (
            {"groups": GROUPS, "read": False, "transform": False},
            "look_up = true needs deduplication.read = true",
        ),
        ({"groups": GROUPS, "look_up": False}, "compute = true needs deduplication.look_up = true"),
    ],
)
def test_contradictions(settings, message):
    with pytest.raises(RecipeError, match=message):
        DeduplicationOptions(**settings)


def test_steps_do_not_matter_without_groups():
    assert not DeduplicationOptions(read=False).read

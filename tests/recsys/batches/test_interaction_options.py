import pytest

from windrow.comm.errors import RecipeError
from windrow.recsys.batches.interactions import InteractionOptions


def test_what_is_not_given_is_usable():
    assert InteractionOptions().num_negatives > 0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("validation_fraction", -0.1),
        ("validation_fraction", 1.0),
        ("validation_fraction", float("nan")),
        ("max_history", -1),
        ("max_audience", -1),
        ("num_negatives", 0),
        ("negative_exponent", -0.5),
        ("negative_exponent", float("nan")),
    ],
)
def test_values_out_of_range_are_named(name, value):
    with pytest.raises(RecipeError, match=f"interactions.{name} = "):
        InteractionOptions(**{name: value})

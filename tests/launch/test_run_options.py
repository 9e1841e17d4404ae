"""windrow.launch.rank_process: ranges."""

import pytest

from windrow.comm.errors import RecipeError
from windrow.launch.rank_process import RunOptions


def test_defaults_are_valid() -> None:
    assert RunOptions().backend == "auto"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("seed", -1),
        ("deadline_s", 0.0),
        ("threads", -1),
        ("checkpoint_every_epochs", 0),
        ("checkpoint_every_steps", -1),
        ("keep_checkpoints", 0),
    ],
)
def test_values_out_of_range_are_named(name: str, value: float) -> None:
    with pytest.raises(RecipeError, match=f"{name} = {value}"):
        RunOptions(**{name: value})  # type: ignore[arg-type]

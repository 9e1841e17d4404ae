import pytest

from windrow.comm.errors import RecipeError
from windrow.partition.options import PartitionOptions


def test_defaults_are_valid():
    assert PartitionOptions().method == "metis"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"method": "metsi"}, 'method = "metsi": expected one of metis, fennel, random'),
        ({"order": "vpi"}, 'order = "vpi": expected one of vip, original'),
        ({"num_parts": 0}, "num_parts = 0: expected at least 1"),
        ({"restarts": 0}, "restarts = 0: expected at least 1"),
        ({"refine_cycles": -1}, "refine_cycles = -1: expected at least 0"),
        ({"stream_passes": 0}, "stream_passes = 0: expected at least 1"),
        ({"imbalance": -0.1}, "imbalance = -0.1: expected 0 or more"),
        ({"imbalance": float("nan")}, "imbalance = nan: expected 0 or more"),
        ({"balance": ("trian",)}, "expected different names of train"),
    ],
)
def test_out_of_range_is_refused(fields, message):
    with pytest.raises(RecipeError, match=message):
        PartitionOptions(**fields)

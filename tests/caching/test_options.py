"""Ranges of the recipe section."""

import pytest

from windrow.caching.selection import CacheOptions
from windrow.comm.errors import RecipeError


def test_what_makes_sense_is_taken():
    assert CacheOptions().alpha == "auto"
    assert CacheOptions(alpha=0).alpha == 0
    assert CacheOptions(alpha=3.5, policy="degree", memory_gib=0, gpu_share=0).alpha == 3.5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alpha": -0.1}, "cache.alpha = -0.1"),
        ({"alpha": float("inf")}, "cache.alpha = inf"),
        ({"alpha": float("nan")}, "cache.alpha = nan"),
        ({"alpha": "all"}, 'cache.alpha = "all": must be a number from 0, or "auto"'),
        ({"policy": "luck"}, 'cache.policy = "luck": must be one of vip, degree'),
        ({"memory_gib": -1.0}, "cache.memory_gib = -1.0"),
        ({"memory_gib": float("nan")}, "cache.memory_gib = nan"),
        ({"gpu_share": 1.1}, "cache.gpu_share = 1.1: must be a number from 0 to 1"),
        ({"gpu_share": -0.1}, "cache.gpu_share = -0.1"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(options, message):
    with pytest.raises(RecipeError, match=message):
        CacheOptions(**options)

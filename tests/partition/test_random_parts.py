import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from windrow.partition.partitioners import random_assignment


@given(st.lists(st.integers(0, 2), min_size=1, max_size=80), st.integers(1, 6), st.integers(0, 5))
def test_every_role_is_spread_evenly(roles, num_parts, seed):
    roles = np.array(roles)
    assignment = random_assignment(roles, num_parts, seed=seed)
    for chosen in (roles >= 0, roles == 0, roles == 1, roles == 2):
        counts = np.bincount(assignment[chosen], minlength=num_parts)
        assert counts.max() - counts.min() <= 1


def test_depends_on_the_seed_alone():
    roles = np.zeros(200, np.uint8)
    assert (random_assignment(roles, 4, seed=1) == random_assignment(roles, 4, seed=1)).all()
    assert (random_assignment(roles, 4, seed=1) != random_assignment(roles, 4, seed=2)).any()

"""A cost model that is known to the last digit."""

import pytest

from benchmarks.harness.hand_made_costs import hand_made_model
from windrow.partition.tables.cost_model import ComputeModel


@pytest.fixture(scope="session")
def hand_made() -> ComputeModel:
    return hand_made_model()

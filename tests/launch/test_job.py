"""windrow.launch.job: both jobs have everything that the loop asks for."""

import pytest

from windrow.launch.graph_job import GraphJob
from windrow.launch.job import TrainingJob
from windrow.launch.recommendation_job import RecommendationJob


@pytest.mark.parametrize("kind", [GraphJob, RecommendationJob])
def test_a_job_has_every_member(kind: type) -> None:
    asked = {name for name in vars(TrainingJob) if not name.startswith("_")}
    assert len(asked) > 10
    assert not asked - set(dir(kind))

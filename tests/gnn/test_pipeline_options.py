"""Ranges of the recipe section."""

import pytest

from windrow.comm.errors import RecipeError
from windrow.gnn.pipeline import PipelineOptions


def test_a_pipeline_may_be_off():
    assert PipelineOptions(depth=0, sampler_threads=1).depth == 0
    assert PipelineOptions().depth > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"depth": -1}, "pipeline.depth = -1: must be at least 0"),
        ({"sampler_threads": 0}, "pipeline.sampler_threads = 0: must be at least 1"),
    ],
)
def test_numbers_below_the_least_are_refused_by_name(options, message):
    with pytest.raises(RecipeError, match=message):
        PipelineOptions(**options)

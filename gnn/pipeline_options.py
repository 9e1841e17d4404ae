"""The recipe section that says how far ahead of training minibatches are made and fetched."""

from dataclasses import dataclass

from windrow.comm.errors import RecipeError

__all__ = ["PipelineOptions"]


@dataclass(frozen=True, kw_only=True, slots=True)
class PipelineOptions:
    """How many minibatches are under way while one is trained on. The answer does not depend on it, bit for bit."""

    depth: int = 4
    """Minibatches whose rows are being asked for ahead of the one in training; 0 does all stages of a minibatch one
    after another (no pipeline)."""

    sampler_threads: int = 1
    """Threads of each rank that sample, each a whole minibatch at a time, ahead of the exchange."""

    def __post_init__(self) -> None:
        """Check the ranges.

        Raises:
            RecipeError: names the field, its value and what is allowed.
        """
        for name, least in (("depth", 0), ("sampler_threads", 1)):
            if getattr(self, name) < least:
                raise RecipeError(f"pipeline.{name} = {getattr(self, name)}: must be at least {least}")

"""The recipe section that says which rows of other ranks are kept on this one as well."""

from dataclasses import dataclass
from typing import Literal, get_args

from windrow.comm.errors import RecipeError

__all__ = ["CacheOptions", "PolicyName"]

PolicyName = Literal["vip", "degree", "reachable-degree", "halo", "paths", "reverse-pagerank", "simulation"]
"""What remote vertices are ranked by; see `windrow.caching.policies`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheOptions:
    """Which rows of other ranks are kept on this one as well. The answer does not depend on it."""

    alpha: float | Literal["auto"] = "auto"
    """Replication factor: every rank keeps floor(alpha * N / ranks) remote rows, so memory for features grows to
    1 + alpha times. "auto": as much as pays and fits into `memory_gib`."""

    policy: PolicyName = "vip"
    """What remote vertices are ranked by."""

    memory_gib: float = 1.0
    """Most memory of a rank for remote rows, in GiB (2**30 bytes), where alpha is "auto"; that of the GPU, where one
    trains. The index of the rows comes on top, in memory of the host: at most 64 bytes for each row, or 64 MiB."""

    gpu_share: float = 1.0
    """Share of a rank's own rows that is kept in GPU memory, those that are needed most first; the rest waits in
    page-locked memory of the host. Means nothing on a CPU."""

    def __post_init__(self) -> None:
        """Check the ranges.

        Raises:
            RecipeError: names the field, its value and what is allowed.
        """
        if isinstance(self.alpha, str):
            if self.alpha != "auto":
                raise RecipeError(f'cache.alpha = "{self.alpha}": must be a number from 0, or "auto"')
        elif not 0 <= self.alpha < float("inf"):
            raise RecipeError(f'cache.alpha = {self.alpha}: must be a number from 0, or "auto"')
        if self.policy not in get_args(PolicyName):
            names = ", ".join(get_args(PolicyName))
            raise RecipeError(f'cache.policy = "{self.policy}": must be one of {names}')
        if not 0 <= self.memory_gib < float("inf"):
            raise RecipeError(f"cache.memory_gib = {self.memory_gib}: must be a number from 0")
        if not 0 <= self.gpu_share <= 1:
            raise RecipeError(f"cache.gpu_share = {self.gpu_share}: must be a number from 0 to 1")

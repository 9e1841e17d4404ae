"""The settings of a run that concern neither data nor model."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from windrow.comm.connect import BackendName
from windrow.comm.errors import RecipeError

__all__ = ["RunOptions"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RunOptions:
    """Where and how a run happens."""

    seed: int = 0
    """Of everything random: weights, shuffles, samples, dropout."""
    folder: Path | None = None
    """Run folder; None for ``runs/<recipe name>-<n>`` in the current folder."""
    backend: BackendName = "auto"
    """What ranks communicate through; "auto" follows the launcher."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where the model computes; "cuda" gives each rank of a machine its own GPU, in rank order."""
    cuda_aware_mpi: bool = False
    """With the "mpi" backend, hand GPU memory to the MPI library, which must have been built for that."""
    deadline_s: float = 300.0
    """Seconds that a rank waits for others before the run is ended with an error."""
    debug: bool = False
    """Check before each collective that all ranks call the same one with arguments that agree; slow."""
    threads: int = 0
    """Threads per rank for computing; 0 shares this machine's usable cores among its ranks."""
    checkpoint_every_epochs: int = 1
    """Epochs between two checkpoints; the last epoch always has one."""
    checkpoint_every_steps: int = 0
    """Steps between two checkpoints inside an epoch, for epochs of hours; 0: only at the ends of epochs."""
    keep_checkpoints: int = 2
    """How many of the latest checkpoints are kept; the best one is kept besides."""
    tensorboard: bool = True
    """Also log to TensorBoard."""

    def __post_init__(self) -> None:
        """Check the ranges.

        Raises:
            RecipeError: names the field, its value and what is allowed.
        """
        if self.seed < 0:
            raise RecipeError(f"seed = {self.seed} must not be negative")
        if not self.deadline_s > 0:
            raise RecipeError(f"deadline_s = {self.deadline_s} must be above 0 seconds")
        if self.threads < 0:
            raise RecipeError(
                f"threads = {self.threads} must be at least 1, or 0 for a fair share of the cores"
            )
        if self.checkpoint_every_steps < 0:
            raise RecipeError(
                f"checkpoint_every_steps = {self.checkpoint_every_steps} must be at least 1, or 0 for only at the ends "
                "of epochs"
            )
        for name in ("checkpoint_every_epochs", "keep_checkpoints"):
            if getattr(self, name) < 1:
                raise RecipeError(f"{name} = {getattr(self, name)} must be at least 1")

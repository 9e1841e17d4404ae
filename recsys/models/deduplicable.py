"""Whether a module may run once for samples that share its input."""

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from windrow.comm.errors import RecipeError

__all__ = ["check_deduplicable"]


def check_deduplicable(module: nn.Module) -> None:
    """Refuse a module whose result for a sample is not a function of the sample's own input.

    Dropout would drop the same entries in all samples that share a row, and statistics of a batch would count their row
    once. What a module draws or averages outside of PyTorch's own modules cannot be seen from here: it says so with an
    attribute ``depends_on_other_samples = True``.

    Args:
        module: with all modules inside.

    Raises:
        RecipeError: names the module inside and the cure.
    """
    for name, part in module.named_modules():
        reason = _reason(part)
        if reason is not None:
            place = f"{type(module).__name__}.{name}" if name else "it"
            raise RecipeError(
                f"{type(module).__name__} cannot run once for samples that share a list: {place} "
                f"({type(part).__name__}) {reason}. Remove it, use it behind the tower, or set "
                "deduplication.compute = false"
            )


def _reason(part: nn.Module) -> str | None:
    if isinstance(part, _DropoutNd) and part.p > 0:
        return f"drops entries at random (p = {part.p}), and samples would share what is dropped"
    if isinstance(part, nn.MultiheadAttention | nn.RNNBase) and part.dropout > 0:
        return f"drops entries at random (dropout = {part.dropout}), and samples would share what is dropped"
    if isinstance(part, nn.RReLU) and part.lower < part.upper:
        return "draws its slope at random, and samples would share it"
    if isinstance(part, _BatchNorm):
        return "averages over the rows of a batch, and would count a row of several samples once"
    if getattr(part, "depends_on_other_samples", False):
        return "says that it depends on other samples"
    return None

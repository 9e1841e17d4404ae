"""What every rank has a copy of, dense weights and buffers: the same at first, and refused where they part."""

import hashlib
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from windrow.comm.errors import RecipeError
from windrow.comm.world import World

__all__ = ["check_buffers", "check_model", "copy_from_rank_0", "digest"]

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


def check_model(model: nn.Module) -> None:
    """Refuse what ranks could not keep the same: RecipeError."""
    for name, module in model.named_modules():
        if isinstance(module, BATCH_NORMS):
            raise RecipeError(
                f"{name or 'the model'} is {type(module).__name__}: its statistics, and with them the answer, would "
                "differ between ranks. Use nn.LayerNorm"
            )
        for own in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
            if isinstance(own, UninitializedParameter | UninitializedBuffer):
                raise RecipeError(
                    f"{name or 'the model'} is {type(module).__name__} without sizes yet: give it its number of inputs "
                    "(part.num_features, say), or run it once before it is trained"
                )


def copy_from_rank_0(world: World, state: Mapping[str, Tensor]) -> None:
    """Make weights and buffers equal on all ranks, in place: RecipeError where they have other shapes. Collective."""
    if world.size == 1:
        return
    found = {name: value.cpu() for name, value in state.items()} if world.rank == 0 else None
    wanted = world.broadcast_object(found, root=0, stage="weights")
    if {name: value.shape for name, value in wanted.items()} != {name: value.shape for name, value in state.items()}:
        raise RecipeError(f"rank {world.rank} has a model of another shape than rank 0: make the same on all ranks")
    with torch.no_grad():
        for name, value in state.items():
            value.copy_(wanted[name])


def digest(value: Tensor) -> bytes:
    """Of the bytes of a tensor."""
    return hashlib.blake2b(value.detach().cpu().flatten().view(torch.uint8).numpy().data, digest_size=8).digest()


def check_buffers(world: World, model: nn.Module, state: Callable[[], Mapping[str, Tensor]]) -> None:
    """Refuse buffers of a model's state that are not the same on all ranks: RecipeError. Collective.

    Cost: the state, and a hash of their bytes; none on one rank.
    """
    if world.size == 1:
        return
    weights = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    own = {name: digest(value) for name, value in state().items() if name not in weights}
    if not own:
        return
    everyone = world.all_gather_object(own, stage="buffers")
    for name in own:
        if len({of_rank[name] for of_rank in everyone}) > 1:
            raise RecipeError(
                f"the buffer {name!r} of the model is not the same on all ranks: each has changed it by its own rows. "
                "Sum such statistics over all ranks (world.all_reduce), or leave them out"
            )

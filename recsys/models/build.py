"""Options in, a model with reproducible weights out."""

from collections.abc import Mapping

import torch

from windrow.comm.errors import RecipeError
from windrow.comm.random import Stream, stream_key
from windrow.recsys.models.dcn import DCN
from windrow.recsys.models.dlrm import DLRM
from windrow.recsys.models.model import ClickModel
from windrow.recsys.models.options import ModelOptions
from windrow.recsys.models.sequence_tower import SequenceModel

__all__ = ["build_model"]


def build_model(
    options: ModelOptions,
    *,
    num_dense: int,
    pooled_dims: Mapping[str, int],
    sequence_dims: Mapping[str, int] | None = None,
    seed: int,
) -> ClickModel:
    """Create a model of clicks whose weights depend on its arguments alone, not on torch's global generator.

    Args:
        options: shape; `sequences` must be the features of `sequence_dims`.
        num_dense: dense columns of the log.
        pooled_dims: pooled feature -> columns of its embedding, in the order in which they come.
        sequence_dims: sequence feature -> columns of its items' embeddings; None for no such features.
        seed: the run's seed.

    Raises:
        RecipeError: shape and features do not go together, or the kind is no model of clicks.
    """
    sequence_dims = sequence_dims or {}
    if set(sequence_dims) != set(options.sequences):
        raise RecipeError(
            f"model.sequences = {list(options.sequences)}, but the unpooled features are {list(sequence_dims)}: "
            "name the same"
        )
    # torch.Generator takes signed 64-bit seeds.
    key = stream_key(seed, Stream.INITIALISE) & (2**63 - 1)
    generator = torch.Generator().manual_seed(key)
    model = _make_click_model(options, num_dense, {**pooled_dims, **sequence_dims}, generator)
    if options.sequence_query is None:
        return model
    return SequenceModel(
        model,
        pooled_dims=pooled_dims,
        sequence_dims=sequence_dims,
        query=options.sequence_query,
        hidden=options.sequence_hidden,
        generator=generator,
    )


def _make_click_model(
    options: ModelOptions, num_dense: int, pooled_dims: Mapping[str, int], generator: torch.Generator
) -> ClickModel:
    match options.kind:
        case "dlrm":
            return DLRM(
                num_dense=num_dense,
                pooled_dims=pooled_dims,
                bottom=options.bottom,
                top=options.top,
                embeddings_in_top=options.embeddings_in_top,
                dropout=options.dropout,
                generator=generator,
            )
        case "dcn":
            return DCN(
                num_dense=num_dense,
                pooled_dims=pooled_dims,
                structure=options.structure,
                cross_layers=options.cross_layers,
                low_rank=options.low_rank,
                deep=options.deep,
                dropout=options.dropout,
                generator=generator,
            )
        case "two_tower":
            raise RecipeError(
                'model.kind = "two_tower" learns from interactions, not from labels: for a log of clicks choose dlrm '
                "or dcn"
            )

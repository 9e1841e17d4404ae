"""Options in, a model with reproducible weights out."""

from collections.abc import Mapping

import torch

from windrow.comm.errors import RecipeError
from windrow.comm.random import Stream, stream_key
from windrow.recsys.batches.deduplication.options import DeduplicationOptions
from windrow.recsys.log.options import LabelKind
from windrow.recsys.models.attention import AttentionPooling
from windrow.recsys.models.click_models import DCN, DLRM, ClickModel
from windrow.recsys.models.options import ModelOptions
from windrow.recsys.models.self_attention import SelfAttentionPooling
from windrow.recsys.models.towers import FeatureMLPModel, SequenceModel

__all__ = ["build_model"]


def build_model(
    options: ModelOptions,
    *,
    num_dense: int,
    pooled_dims: Mapping[str, int],
    sequence_dims: Mapping[str, int] | None = None,
    num_labels: int = 1,
    label_kind: LabelKind = "binary",
    seed: int,
    deduplication: DeduplicationOptions | None = None,
) -> ClickModel:
    """Create a model of clicks whose weights depend on its arguments alone, not on torch's global generator.

    Args:
        options: shape; `sequences` must be the features of `sequence_dims`.
        num_dense: dense columns of the log.
        pooled_dims: pooled feature -> columns of its embedding, in the order in which they come.
        sequence_dims: sequence feature -> columns of its items' embeddings; None for no such features.
        num_labels: labels of a sample: outputs of the model.
        label_kind: what they are.
        seed: the run's seed.
        deduplication: whether work is shared by samples that share rows, and how lists are expanded; it changes
            neither weights nor, but for rounding, results. None: all of it is on.

    Raises:
        RecipeError: shape and features do not go together, or the kind is no model of clicks.
    """
    sequence_dims = sequence_dims or {}
    if set(sequence_dims) != set(options.sequences):
        raise RecipeError(
            f"model.sequences = {list(options.sequences)}, but the unpooled features are {list(sequence_dims)}: "
            "name the same"
        )
    twice = sorted(set(sequence_dims) & set(pooled_dims))
    if twice:
        raise RecipeError(f"{', '.join(twice)}: both pooled and unpooled: name each feature once")
    if options.kind == "two_tower":
        raise RecipeError(
            'model.kind = "two_tower" learns from interactions, not from labels: for a log of clicks choose dlrm or dcn'
        )
    # torch.Generator takes signed 64-bit seeds.
    generator = torch.Generator().manual_seed(stream_key(seed, Stream.INITIALISE) & (2**63 - 1))
    dims = {**pooled_dims, **sequence_dims}
    kind = DLRM if options.kind == "dlrm" else DCN
    model: ClickModel = kind(options, num_dense=num_dense, pooled_dims=dims, num_labels=num_labels, generator=generator)
    if options.feature_mlp:
        model = FeatureMLPModel(
            model, dims, hidden=options.feature_mlp, deduplication=deduplication, generator=generator
        )
    if options.sequences:
        model = _with_sequences(model, options, pooled_dims, sequence_dims, deduplication, generator)
    model.label_kind = label_kind
    return model


def _with_sequences(
    model: ClickModel,
    options: ModelOptions,
    pooled_dims: Mapping[str, int],
    sequence_dims: Mapping[str, int],
    deduplication: DeduplicationOptions | None,
    generator: torch.Generator,
) -> SequenceModel:
    if options.sequence_query is not None:
        _check_query(options.sequence_query, pooled_dims, sequence_dims)
    towers = {
        name: AttentionPooling(dim, hidden=options.sequence_hidden, generator=generator)
        if options.sequence_pooling == "target"
        else SelfAttentionPooling(dim, options, generator=generator)
        for name, dim in sequence_dims.items()
    }
    return SequenceModel(model, towers, query=options.sequence_query, deduplication=deduplication)


def _check_query(query: str, pooled_dims: Mapping[str, int], sequence_dims: Mapping[str, int]) -> None:
    if query not in pooled_dims:
        raise RecipeError(
            f'model.sequence_query = "{query}" is no pooled feature: choose one of {", ".join(pooled_dims)}'
        )
    for name, dim in sequence_dims.items():
        if dim != pooled_dims[query]:
            raise RecipeError(
                f"attention compares items of {name!r}, {dim} columns, with {query!r}, {pooled_dims[query]} "
                "columns: give their tables the same dim, or let them share one"
            )

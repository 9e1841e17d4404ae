"""Options in, a model with reproducible weights out.

The recipe section says what is computed from dense values and embeddings.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Literal, get_args

import torch
from torch import nn

from windrow.comm.errors import RecipeError
from windrow.comm.random import Stream, stream_key
from windrow.recsys.batches.deduplication.options import DeduplicationOptions
from windrow.recsys.models.attention import AttentionPooling
from windrow.recsys.models.click_models import DCN, DLRM, ClickModel, Structure
from windrow.recsys.models.self_attention import SelfAttentionPooling
from windrow.recsys.models.towers import FeatureMLPModel, SequenceModel

__all__ = ["ModelKind", "ModelOptions", "SequencePooling", "build_model"]

ModelKind = Literal["dlrm", "dcn", "two_tower"]

SequencePooling = Literal["target", "self"]
"""What makes one embedding of a list: attention to the item at hand, or of items to one another."""

_FIELDS_OF_SELF_ATTENTION = frozenset({"sequence_layers", "sequence_heads", "sequence_positions"})
_FIELDS_OF_SEQUENCES = frozenset({"sequences", "sequence_pooling", "sequence_query", "sequence_hidden"})
_FIELDS_OF_CLICK_MODELS = _FIELDS_OF_SEQUENCES | _FIELDS_OF_SELF_ATTENTION | {"dropout", "feature_mlp"}
_FIELDS_OF: dict[ModelKind, frozenset[str]] = {
    "dlrm": _FIELDS_OF_CLICK_MODELS | {"bottom", "top", "embeddings_in_top"},
    "dcn": _FIELDS_OF_CLICK_MODELS | {"structure", "cross_layers", "low_rank", "deep"},
    "two_tower": frozenset({"temperature"}),
}
"""Fields that each kind reads."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelOptions:
    """Shape of a model. A field that the chosen kind does not read must be left out."""

    kind: ModelKind = "dlrm"
    """dlrm: dot products of all embeddings; dcn: cross layers (DCN-v2); two_tower: one vector for a user and one for
    an item, for interactions without a log of clicks."""
    dropout: float = 0.0
    """dlrm, dcn: chance of an entry to be dropped after each hidden layer behind the embeddings, in [0, 1)."""
    bottom: tuple[int, ...] = (512, 256)
    """dlrm: columns of the hidden layers from dense values to a vector; a last layer as wide as an embedding follows.
    Not used where the log has no dense columns."""
    top: tuple[int, ...] = (512, 256)
    """dlrm: columns of the hidden layers from dot products to the logit."""
    embeddings_in_top: bool = False
    """dlrm: true shows the top layers the embeddings themselves, not just their dot products."""
    structure: Structure = "stacked"
    """dcn: stacked: the deep layers take what the cross layers give; parallel: both take the input."""
    cross_layers: int = 3
    """dcn: cross layers; terms have degrees up to one more."""
    low_rank: int | None = None
    """dcn: rank of the cross layers' matrices; "none": full. Saves work below half the columns of the input."""
    deep: tuple[int, ...] = (512, 256)
    """dcn: columns of the hidden deep layers."""
    sequences: tuple[str, ...] = ()
    """dlrm, dcn: features whose ids are weighed by attention, one by one, instead of pooled."""
    sequence_pooling: SequencePooling = "target"
    """target: items of a sequence count by how they fit `sequence_query`; self: they look at one another, which is done
    once for samples that share the sequence."""
    sequence_query: str | None = None
    """target: the pooled feature that attention compares each item of a sequence with: the item that may be clicked."""
    sequence_hidden: tuple[int, ...] = (36,)
    """target: columns of the hidden layers that weigh an item; 36 as in the paper (Zhou et al. 2018). self: those of
    the hidden layers behind each layer's attention."""
    sequence_layers: int = 1
    """self: layers of attention."""
    sequence_heads: int = 4
    """self: heads of each layer; they divide the columns of the items."""
    sequence_positions: int = 128
    """self: items from the end of a sequence that differ by their position; those before share one."""
    feature_mlp: tuple[int, ...] = ()
    """dlrm, dcn: columns of the hidden layers of a net that changes each embedding, with weights for each feature,
    before embeddings meet; none: there is no such net."""

    temperature: float = 0.1
    """two_tower: what cosines are divided by in the loss; the smaller, the more the hardest negatives count."""

    def __post_init__(self) -> None:
        """Check every value, and what goes together.

        Raises:
            RecipeError: names the field, its value and what is allowed.
        """
        for name, allowed in (
            ("kind", get_args(ModelKind)),
            ("structure", get_args(Structure)),
            ("sequence_pooling", get_args(SequencePooling)),
        ):
            if getattr(self, name) not in allowed:
                raise RecipeError(
                    f'model.{name} = "{getattr(self, name)}": expected one of {", ".join(allowed)}'
                )
        self._refuse_fields_of_other_kinds()
        if not 0 <= self.dropout < 1:
            raise RecipeError(f"model.dropout = {self.dropout}: choose a probability in [0, 1)")
        if not 0 < self.temperature < float("inf"):
            raise RecipeError(f"model.temperature = {self.temperature}: must be above 0 and finite")
        if self.cross_layers < 1:
            raise RecipeError(f"model.cross_layers = {self.cross_layers}: must be at least 1")
        if self.low_rank is not None and self.low_rank < 1:
            raise RecipeError(
                f'model.low_rank = {self.low_rank}: must be at least 1, or "none" for full matrices'
            )
        for name in ("bottom", "top", "deep", "sequence_hidden", "feature_mlp"):
            if any(columns < 1 for columns in getattr(self, name)):
                raise RecipeError(
                    f"model.{name} = {list(getattr(self, name))}: each layer needs at least 1 column"
                )
        if self.sequence_pooling == "target":
            self._check_target_attention()
        else:
            self._check_self_attention()

    def _check_target_attention(self) -> None:
        if bool(self.sequences) != (self.sequence_query is not None):
            raise RecipeError(
                f"model.sequences = {list(self.sequences)} and model.sequence_query = "
                f'"{self.sequence_query or "none"}": give both, or neither'
            )
        for field in fields(self):
            if field.name in _FIELDS_OF_SELF_ATTENTION and getattr(self, field.name) != field.default:
                raise RecipeError(
                    f'model.{field.name} is for sequence_pooling = "self", but model.sequence_pooling = "target": '
                    "leave it out or change the pooling"
                )

    def _check_self_attention(self) -> None:
        if not self.sequences:
            raise RecipeError('model.sequence_pooling = "self" needs model.sequences: name the features')
        if self.sequence_query is not None:
            raise RecipeError(
                f'model.sequence_query = "{self.sequence_query}" is for sequence_pooling = "target", but '
                'model.sequence_pooling = "self": leave it out or change the pooling'
            )
        for name in sorted(_FIELDS_OF_SELF_ATTENTION):
            if getattr(self, name) < 1:
                raise RecipeError(f"model.{name} = {getattr(self, name)}: must be at least 1")

    def _refuse_fields_of_other_kinds(self) -> None:
        for field in fields(self):
            is_read = field.name == "kind" or field.name in _FIELDS_OF[self.kind]
            if not is_read and getattr(self, field.name) != field.default:
                kinds = [kind for kind, names in _FIELDS_OF.items() if field.name in names]
                raise RecipeError(
                    f'model.{field.name} is for kind = "{" or ".join(kinds)}", but model.kind = "{self.kind}": '
                    "leave it out or change the kind"
                )


def build_model(
    options: ModelOptions,
    *,
    num_dense: int,
    pooled_dims: Mapping[str, int],
    sequence_dims: Mapping[str, int] | None = None,
    seed: int,
    deduplication: DeduplicationOptions | None = None,
) -> ClickModel:
    """Create a model of clicks whose weights depend on its arguments alone, not on torch's global generator.

    Args:
        options: shape; `sequences` must be the features of `sequence_dims`.
        num_dense: dense columns of the log.
        pooled_dims: pooled feature -> columns of its embedding, in the order in which they come.
        sequence_dims: sequence feature -> columns of its items' embeddings; None for no such features.
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
    # torch.Generator takes signed 64-bit seeds.
    key = stream_key(seed, Stream.INITIALISE) & (2**63 - 1)
    generator = torch.Generator().manual_seed(key)
    dims = {**pooled_dims, **sequence_dims}
    model = _make_click_model(options, num_dense, dims, generator)
    if options.feature_mlp:
        model = FeatureMLPModel(
            model, dims, hidden=options.feature_mlp, deduplication=deduplication, generator=generator
        )
    if not options.sequences:
        return model
    if options.sequence_query is not None:
        _check_query(options.sequence_query, pooled_dims, sequence_dims)
    towers = {name: _make_tower(options, dim, generator) for name, dim in sequence_dims.items()}
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


def _make_tower(options: ModelOptions, dim: int, generator: torch.Generator) -> nn.Module:
    if options.sequence_pooling == "target":
        return AttentionPooling(dim, hidden=options.sequence_hidden, generator=generator)
    return SelfAttentionPooling(
        dim,
        layers=options.sequence_layers,
        heads=options.sequence_heads,
        hidden=options.sequence_hidden,
        positions=options.sequence_positions,
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

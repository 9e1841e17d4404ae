"""What a user says about a model: its shape, from dense values and embeddings to a result."""

from dataclasses import fields
from typing import Literal

from windrow.comm.errors import RecipeError
from windrow.comm.options import PositiveFloat, PositiveInt, Probability, checked_dataclass

__all__ = ["ModelKind", "ModelOptions", "SequencePooling", "Structure"]

ModelKind = Literal["dlrm", "dcn", "two_tower"]

Structure = Literal["stacked", "parallel"]
"""Where the deep MLP of dcn stands: behind the cross network, or beside it."""

SequencePooling = Literal["target", "self"]
"""What makes one embedding of a list: attention to the item at hand, or of items to one another."""

_SELF_ATTENTION = frozenset({"sequence_layers", "sequence_heads", "sequence_positions"})
_CLICK_MODELS = _SELF_ATTENTION | {
    "sequences", "sequence_pooling", "sequence_query", "sequence_hidden", "dropout", "feature_mlp"
}  # fmt: skip
_READ_BY: dict[str, dict[str, frozenset[str]]] = {
    "kind": {
        "dlrm": _CLICK_MODELS | {"bottom", "top", "embeddings_in_top"},
        "dcn": _CLICK_MODELS | {"structure", "cross_layers", "low_rank", "deep"},
        "two_tower": frozenset({"temperature"}),
    },
    "sequence_pooling": {"target": frozenset({"sequence_query"}), "self": _SELF_ATTENTION},
}
"""Fields that only some values of another field have a use for."""


@checked_dataclass
class ModelOptions:
    """Shape of a model. A field that the chosen kind does not read must be left out."""

    kind: ModelKind = "dlrm"
    """dlrm: dot products of all embeddings; dcn: cross layers (DCN-v2); two_tower: one vector for a user and one for
    an item, for interactions without a log of clicks."""
    dropout: Probability = 0.0
    """dlrm, dcn: chance of an entry to be dropped after each hidden layer behind the embeddings, in [0, 1)."""
    bottom: tuple[PositiveInt, ...] = (512, 256)
    """dlrm: columns of the hidden layers from dense values to a vector; a last layer as wide as an embedding follows.
    Not used where the log has no dense columns."""
    top: tuple[PositiveInt, ...] = (512, 256)
    """dlrm: columns of the hidden layers from dot products to the logit."""
    embeddings_in_top: bool = False
    """dlrm: true shows the top layers the embeddings themselves, not just their dot products."""
    structure: Structure = "stacked"
    """dcn: stacked: the deep layers take what the cross layers give; parallel: both take the input."""
    cross_layers: PositiveInt = 3
    """dcn: cross layers; terms have degrees up to one more."""
    low_rank: PositiveInt | None = None
    """dcn: rank of the cross layers' matrices; "none": full. Saves work below half the columns of the input."""
    deep: tuple[PositiveInt, ...] = (512, 256)
    """dcn: columns of the hidden deep layers."""
    sequences: tuple[str, ...] = ()
    """dlrm, dcn: features whose ids are weighed by attention, one by one, instead of pooled."""
    sequence_pooling: SequencePooling = "target"
    """target: items of a sequence count by how they fit `sequence_query`; self: they look at one another, which is done
    once for samples that share the sequence."""
    sequence_query: str | None = None
    """target: the pooled feature that attention compares each item of a sequence with: the item that may be clicked."""
    sequence_hidden: tuple[PositiveInt, ...] = (36,)
    """target: columns of the hidden layers that weigh an item; 36 as in the paper (Zhou et al. 2018). self: those of
    the hidden layers behind each layer's attention."""
    sequence_layers: PositiveInt = 1
    """self: layers of attention."""
    sequence_heads: PositiveInt = 4
    """self: heads of each layer; they divide the columns of the items."""
    sequence_positions: PositiveInt = 128
    """self: items from the end of a sequence that differ by their position; those before share one."""
    feature_mlp: tuple[PositiveInt, ...] = ()
    """dlrm, dcn: columns of the hidden layers of a net that changes each embedding, with weights for each feature,
    before embeddings meet; none: there is no such net."""

    temperature: PositiveFloat = 0.1
    """two_tower: what cosines are divided by in the loss; the smaller, the more the hardest negatives count."""

    def __post_init__(self) -> None:
        """Check what goes together.

        Raises:
            RecipeError: names the fields, their values and the cure.
        """
        for choice, readers in _READ_BY.items():
            chosen = getattr(self, choice)
            for field in fields(self):
                values = [value for value, names in readers.items() if field.name in names]
                if values and chosen not in values and getattr(self, field.name) != field.default:
                    raise RecipeError(
                        f'model.{field.name} is for {choice} = "{" or ".join(values)}", but model.{choice} = '
                        f'"{chosen}": leave it out or change {choice}'
                    )
        if self.sequence_pooling == "self" and not self.sequences:
            raise RecipeError('model.sequence_pooling = "self" needs model.sequences: name the features')
        if self.sequence_pooling == "target" and bool(self.sequences) != (self.sequence_query is not None):
            raise RecipeError(
                f"model.sequences = {list(self.sequences)} and model.sequence_query = "
                f'"{self.sequence_query or "none"}": give both, or neither'
            )

"""A small net for each feature in front of another model."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from windrow.recsys.deduplication.options import DeduplicationOptions
from windrow.recsys.embeddings import Embeddings, PooledRows
from windrow.recsys.models.mlp import MLP
from windrow.recsys.models.model import ClickModel
from windrow.training.dropout import DropoutContext
from windrow.training.linear import make_linear

__all__ = ["FeatureMLPModel"]


class FeatureMLPModel(ClickModel):
    """Changes each embedding by a net of its feature, before another model sees it.

        e <- V relu(W e + b) + c                         with as many hidden layers as asked for

    A net runs on the rows that were looked up, so once for samples that share a row.

    Args:
        model: takes the changed embeddings.
        dims: feature -> columns, in the order that `model` expects.
        hidden: columns of the hidden layers of each net.
        deduplication: its switch `compute` is read; None: it is on.
        generator: where the weights come from; it moves on.
    """

    def __init__(
        self,
        model: ClickModel,
        dims: Mapping[str, int],
        *,
        hidden: Sequence[int],
        deduplication: DeduplicationOptions | None = None,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.model = model
        self._is_computed_once = (deduplication or DeduplicationOptions()).compute
        self._place = {name: place for place, name in enumerate(dims)}
        self.mlps = nn.ModuleList(MLP([dim, *hidden], generator=generator) for dim in dims.values())
        self.outputs = nn.ModuleList(
            make_linear((dim, *hidden)[-1], dim, generator=generator) for dim in dims.values()
        )

    def begin(self, dense: Tensor) -> Tensor:
        """As the model inside."""
        return self.model.begin(dense)

    def finish(self, begun: Tensor, embeddings: Embeddings, context: DropoutContext | None = None) -> Tensor:
        """Change the embeddings and run the model inside; see `ClickModel.finish`."""
        if not self._is_computed_once:
            embeddings = embeddings.expanded()
        groups = [self._change(group) for group in embeddings.groups]
        changed = Embeddings(groups, embeddings.order, embeddings.sequences)
        return self.model.finish(begun, changed, context)

    def _change(self, group: PooledRows) -> PooledRows:
        if not group.names:
            return group
        rows = group.rows.split(group.dims, 1)
        places = [self._place[name] for name in group.names]
        changed = [
            self.outputs[place](self.mlps[place](part)) for place, part in zip(places, rows, strict=True)
        ]
        return PooledRows(group.names, group.dims, torch.cat(changed, 1), group.inverse)

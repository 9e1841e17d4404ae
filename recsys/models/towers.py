"""What stands in front of another model: a tower over lists of items, or a small net for each feature.

Each list becomes one more embedding. A module whose output depends on its input alone may run once for samples that
share it.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from windrow.comm.errors import RecipeError
from windrow.recsys.batches.deduplication.options import DeduplicationOptions
from windrow.recsys.batches.jagged import Deduplicated, Jagged
from windrow.recsys.embeddings import Embeddings, PooledRows
from windrow.recsys.models.attention import AttentionPooling
from windrow.recsys.models.click_models import MLP, ClickModel
from windrow.training.dense import make_linear
from windrow.training.dropout import DropoutContext

__all__ = ["FeatureMLPModel", "SequenceModel"]


class SequenceModel(ClickModel):
    """Puts a tower for each sequence feature in front of another model.

    Samples that share a list share the tower's work (RecD's deduplicated compute; Zhao et al., MLSys 2023, arXiv
    2211.05239): all of it where the result depends on the list alone, and what belongs to single items in target
    attention::

        list alone           U lists --tower--> [U, d] --expand--> [B, d]
        target attention     U lists --first layer--> items' part --+
                             B queries ----------------------------(+)--> [B, d]

    Args:
        model: made for the pooled features, then the sequence features.
        towers: sequence feature -> its tower, in the order that `model` expects. An `AttentionPooling`, or any module
            that takes items [n, d] of all lists, one after another, and lengths [U] int64, and gives [U, columns]; one
            that draws at random or mixes samples has an attribute ``depends_on_other_samples = True``.
        query: the pooled feature that an `AttentionPooling` compares items with; None where there is none.
        deduplication: its switches `compute` and `expand_jagged` are read; None: both are on.

    Raises:
        RecipeError: target attention without a query; or a tower that cannot run once for samples that share a list,
            while `compute` is on.
    """

    def __init__(
        self,
        model: ClickModel,
        towers: Mapping[str, nn.Module],
        *,
        query: str | None = None,
        deduplication: DeduplicationOptions | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self._sequence_names = tuple(towers)
        self._query = query
        switches = deduplication or DeduplicationOptions()
        self._is_computed_once = switches.compute
        self._pad = not switches.expand_jagged
        for name, tower in towers.items():
            if isinstance(tower, AttentionPooling) and query is None:
                raise RecipeError(f"target attention over {name!r} needs a query: name a pooled feature")
            if self._is_computed_once:
                _check_deduplicable(tower)
        self.poolings = nn.ModuleList(towers.values())

    def begin(self, dense: Tensor) -> Tensor:
        """As the model inside."""
        return self.model.begin(dense)

    def finish(self, begun: Tensor, embeddings: Embeddings, context: DropoutContext | None = None) -> Tensor:
        """Run the towers and the model inside; see `DenseModel.finish`."""
        groups = list(embeddings.groups)
        query = None if self._query is None else embeddings.feature(self._query)
        for name, tower in zip(self._sequence_names, self.poolings, strict=True):
            lists = embeddings.sequences[name]
            if not self._is_computed_once:
                lists = Deduplicated(_through_padding(lists) if self._pad else lists.expand())
            if isinstance(tower, AttentionPooling):
                result, inverse = tower(lists, query), None
            else:
                jagged = lists.jagged
                result, inverse = tower(jagged.values, jagged.lengths.long()), lists.inverse
            groups.append(PooledRows((name,), (result.shape[1],), result, inverse))
        together = Embeddings(groups, (*embeddings.order, *self._sequence_names))
        outputs: Tensor = self.model.finish(begun, together, context)
        return outputs


def _through_padding(lists: Deduplicated[Tensor]) -> Jagged[Tensor]:
    """A list for each sample by way of [U, longest, d], [B, longest, d] and a mask, as without jagged tensors."""
    if lists.inverse is None:
        return lists.jagged
    items, lengths = lists.jagged.values, lists.jagged.lengths.long()
    longest = int(lengths.max()) if len(lengths) else 0
    is_item = torch.arange(longest, device=items.device) < lengths.unsqueeze(1)
    padded = items.new_zeros(len(lengths), longest, items.shape[1]).masked_scatter(is_item.unsqueeze(2), items)
    expanded = padded.index_select(0, lists.inverse)[is_item.index_select(0, lists.inverse)]
    return Jagged.of_lengths(expanded, lengths.index_select(0, lists.inverse))


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
        self.outputs = nn.ModuleList(make_linear((dim, *hidden)[-1], dim, generator=generator) for dim in dims.values())

    def begin(self, dense: Tensor) -> Tensor:
        """As the model inside."""
        return self.model.begin(dense)

    def finish(self, begun: Tensor, embeddings: Embeddings, context: DropoutContext | None = None) -> Tensor:
        """Change the embeddings and run the model inside; see `DenseModel.finish`."""
        if not self._is_computed_once:
            embeddings = embeddings.expanded()
        groups = [self._change(group) for group in embeddings.groups]
        changed = Embeddings(groups, embeddings.order, embeddings.sequences)
        outputs: Tensor = self.model.finish(begun, changed, context)
        return outputs

    def _change(self, group: PooledRows) -> PooledRows:
        if not group.names:
            return group
        rows = group.rows.split(group.dims, 1)
        places = [self._place[name] for name in group.names]
        changed = [self.outputs[place](self.mlps[place](part)) for place, part in zip(places, rows, strict=True)]
        return PooledRows(group.names, group.dims, torch.cat(changed, 1), group.inverse)


def _check_deduplicable(module: nn.Module) -> None:
    """Refuse a module whose result for a sample is not a function of the sample's own input.

    Dropout would drop the same entries in all samples that share a row, and statistics of a batch would count their row
    once. What modules that are not PyTorch's own do cannot be seen from here: they say it.
    """
    for name, part in module.named_modules():
        if isinstance(part, _DropoutNd) and part.p > 0:
            reason = f"drops entries at random (p = {part.p}), and samples would share what is dropped"
        elif isinstance(part, nn.MultiheadAttention | nn.RNNBase) and part.dropout > 0:
            reason = f"drops entries at random (dropout = {part.dropout}), and samples would share what is dropped"
        elif isinstance(part, nn.RReLU) and part.lower < part.upper:
            reason = "draws its slope at random, and samples would share it"
        elif isinstance(part, _BatchNorm):
            reason = "averages over the rows of a batch, and would count a row of several samples once"
        elif getattr(part, "depends_on_other_samples", False):
            reason = "says that it depends on other samples"
        else:
            continue
        place = f"{type(module).__name__}.{name}" if name else "it"
        raise RecipeError(
            f"{type(module).__name__} cannot run once for samples that share a list: {place} "
            f"({type(part).__name__}) {reason}. Remove it, use it behind the tower, or set "
            "deduplication.compute = false"
        )

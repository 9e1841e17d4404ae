"""Towers over lists of items in front of another model: each list becomes one more embedding."""

from collections.abc import Mapping

from torch import Tensor, nn

from windrow.comm.errors import RecipeError
from windrow.recsys.deduplication.options import DeduplicationOptions
from windrow.recsys.embeddings import Embeddings, PooledRows
from windrow.recsys.models.deduplicable import check_deduplicable
from windrow.recsys.models.model import ClickModel
from windrow.recsys.models.target_attention import AttentionPooling
from windrow.training.dropout import DropoutContext

__all__ = ["SequenceModel"]


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
            that takes items [n, d] of all lists, one after another, and lengths [U] int64, and gives [U, columns].
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
                check_deduplicable(tower)
        self.poolings = nn.ModuleList(towers.values())

    def begin(self, dense: Tensor) -> Tensor:
        """As the model inside."""
        return self.model.begin(dense)

    def finish(self, begun: Tensor, embeddings: Embeddings, context: DropoutContext | None = None) -> Tensor:
        """Run the towers and the model inside; see `ClickModel.finish`."""
        groups = list(embeddings.groups)
        query = None if self._query is None else embeddings.feature(self._query)
        for name, tower in zip(self._sequence_names, self.poolings, strict=True):
            lists = embeddings.sequences[name]
            if not self._is_computed_once:
                lists = lists.expanded(pad=self._pad)
            if isinstance(tower, AttentionPooling):
                result, inverse = tower(lists, query), None
            else:
                result, inverse = tower(lists.items, lists.lengths.long()), lists.inverse
            groups.append(PooledRows((name,), (result.shape[1],), result, inverse))
        together = Embeddings(groups, (*embeddings.order, *self._sequence_names))
        return self.model.finish(begun, together, context)

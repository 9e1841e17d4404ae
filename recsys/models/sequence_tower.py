"""Attention over a user's list of items: the list becomes one more embedding, of what matters for the item at hand.

    sequence   items k_1 .. k_n of a sample      [n, d]     unpooled, any n
    query      embedding q of the item at hand   [d]
    score_i  = w . mlp(concat(k_i, q, k_i - q, k_i * q)) + b
    a        = softmax of the scores over the n items of the sample
    result   = sum of a_i k_i                    [d]; zeros where n = 0

This is the local activation unit of the deep interest network (Zhou et al., KDD 2018, arXiv 1706.06978) with a
rectifier inside and a softmax over the scores, so that long lists do not weigh more than short ones.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from windrow.comm.errors import RecipeError
from windrow.recsys.models.mlp import MLP
from windrow.recsys.models.model import ClickModel
from windrow.training.dropout import DropoutContext
from windrow.training.linear import make_linear

if TYPE_CHECKING:
    from windrow.recsys.torchrec_adapter import JaggedTensor

__all__ = ["AttentionPooling", "SequenceModel", "segment_softmax"]


def segment_softmax(scores: Tensor, lengths: Tensor) -> Tensor:
    """Softmax inside each of many runs of numbers, without padding them to one length.

    Args:
        scores: [n] floating, the runs one after another.
        lengths: [B] int64, adding up to n; may hold zeros.

    Returns:
        [n]: each run is non-negative and adds up to 1, however large its scores. Cost: three passes over n.
    """
    # The largest score of a run cancels out, so no gradient goes through it.
    largest = _reduced(scores.detach(), "max", lengths, initial=-torch.inf)
    raised = torch.exp(scores - _repeated(largest, lengths, len(scores)))
    totals = _reduced(raised, "sum", lengths, initial=0)
    return raised / _repeated(totals, lengths, len(scores))


class AttentionPooling(nn.Module):
    """Pools the items of each sample by their attention to a query; the formula stands at the top of this module.

    Args:
        dim: d, columns of items and queries.
        hidden: columns of the hidden layers that score an item.
        generator: where the weights come from; it moves on.
    """

    def __init__(self, dim: int, *, hidden: Sequence[int] = (36,), generator: torch.Generator) -> None:
        super().__init__()
        self.mlp = MLP([4 * dim, *hidden], generator=generator)
        self.score = make_linear(self.mlp.out_features, 1, generator=generator)

    def forward(self, items: Tensor, lengths: Tensor, queries: Tensor) -> Tensor:
        """Pool.

        Args:
            items: [n, d], those of the first sample first.
            lengths: [B] integer, items of each sample; may hold zeros.
            queries: [B, d].

        Returns:
            [B, d]. Memory: 4 d numbers for each of the n items, whatever the longest list.
        """
        lengths = lengths.long()
        asked = _repeated(queries, lengths, len(items))
        compared = torch.cat([items, asked, items - asked, items * asked], 1)
        weights = segment_softmax(self.score(self.mlp(compared)).view(len(items)), lengths)
        return _reduced(weights.unsqueeze(1) * items, "sum", lengths, initial=0)


class SequenceModel(ClickModel):
    """Puts attention in front of another model: each sequence feature becomes one more pooled embedding.

    Args:
        model: made for the pooled features, then the sequence features.
        pooled_dims: feature -> columns, in the order of the pooled embeddings.
        sequence_dims: sequence feature -> columns, in the order that `model` expects.
        query: the pooled feature that items are compared with.
        hidden: columns of the hidden layers that score an item.
        generator: where the weights come from; it moves on.

    Raises:
        RecipeError: the query is no pooled feature, or not as wide as a sequence's items.
    """

    def __init__(
        self,
        model: ClickModel,
        *,
        pooled_dims: Mapping[str, int],
        sequence_dims: Mapping[str, int],
        query: str,
        hidden: Sequence[int] = (36,),
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        if query not in pooled_dims:
            raise RecipeError(
                f'model.sequence_query = "{query}" is no pooled feature: choose one of {", ".join(pooled_dims)}'
            )
        self.model = model
        self._sequence_names = tuple(sequence_dims)
        names = list(pooled_dims)
        first = sum(pooled_dims[name] for name in names[: names.index(query)])
        self._query_columns = slice(first, first + pooled_dims[query])
        for name, dim in sequence_dims.items():
            if dim != pooled_dims[query]:
                raise RecipeError(
                    f"attention compares items of {name!r}, {dim} columns, with {query!r}, {pooled_dims[query]} "
                    "columns: give their tables the same dim, or let them share one"
                )
        self.poolings = nn.ModuleList(
            AttentionPooling(dim, hidden=hidden, generator=generator) for dim in sequence_dims.values()
        )

    def begin(self, dense: Tensor) -> Tensor:
        """As the model inside."""
        return self.model.begin(dense)

    def finish(
        self,
        begun: Tensor,
        pooled: Tensor,
        sequences: "dict[str, JaggedTensor] | None" = None,
        context: DropoutContext | None = None,
    ) -> Tensor:
        """Pool the sequences and run the model inside; see `ClickModel.finish`."""
        queries = pooled[:, self._query_columns]
        columns = [pooled]
        for name, pooling in zip(self._sequence_names, self.poolings, strict=True):
            items = (sequences or {})[name]
            columns.append(pooling(items.values(), items.lengths(), queries))
        return self.model.finish(begun, torch.cat(columns, 1), None, context)


def _repeated(rows: Tensor, lengths: Tensor, total: int) -> Tensor:
    return rows.repeat_interleave(lengths, 0, output_size=total)


def _reduced(rows: Tensor, reduce: Literal["max", "sum"], lengths: Tensor, *, initial: float) -> Tensor:
    # Torch refuses an empty list of lengths, so an empty run is added and its result dropped.
    return torch.segment_reduce(rows, reduce, lengths=F.pad(lengths, (0, 1)), initial=initial)[:-1]

"""Models of clicks: DLRM and DCN-v2, and what every such model is.

A model of clicks has a part that needs no embeddings, a part that does, and the loss of both.

DLRM     bottom MLP, dot products of every two of a sample's vectors, top MLP
DCN-v2   a cross network and a deep MLP, one after the other or side by side; cross layers are products of the input
         with itself, of a degree that grows by one with every layer
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from windrow.comm.errors import DataError, RecipeError
from windrow.recsys.batches.batch import Batch
from windrow.recsys.embeddings import Embeddings
from windrow.recsys.log.options import LabelKind
from windrow.recsys.models.interaction_kernels import multiply_pairs, multiply_pairs_backward
from windrow.recsys.models.options import ModelOptions
from windrow.training.dense import make_linear
from windrow.training.dropout import DropoutContext
from windrow.training.task import is_one_each

__all__ = ["DCN", "DLRM", "MLP", "ClickModel", "DenseModel", "label_loss"]


def label_loss(outputs: Tensor, labels: Tensor, weights: Tensor | None = None, *, kind: LabelKind = "binary") -> Tensor:
    """The sum over samples of the losses of all their labels.

    Args:
        outputs: as many as labels, one for each: logits of binary labels, predictions of real ones.
        labels: [B], or [B, L] of several labels.
        weights: [B], what each sample's loss is multiplied by; None: 1.
        kind: binary: binary cross entropy; real: squared error.

    Returns:
        Scalar, differentiable in `outputs`; 0 for no samples.

    Raises:
        RecipeError: there are not as many outputs as labels.
    """
    check_outputs(outputs, labels)
    outputs = outputs.reshape(labels.shape)
    reduction = "sum" if weights is None else "none"
    loss = F.binary_cross_entropy_with_logits if kind == "binary" else F.mse_loss
    found = loss(outputs, labels, reduction=reduction)
    # Not as a product of matrices, which autocast would round.
    return found if weights is None else (found.t() * weights).sum()


def check_outputs(outputs: Any, labels: Tensor) -> None:
    """Refuse outputs that are not one for each label: RecipeError."""
    if not isinstance(outputs, Tensor) or not is_one_each(outputs, labels):
        is_tensor = isinstance(outputs, Tensor)
        found = f"shape {list(outputs.shape)}" if is_tensor else f"type {type(outputs).__name__}"
        raise RecipeError(
            f"the model gives outputs of {found} for labels of shape {list(labels.shape)}: give one for each label, or "
            "a loss and metrics of your own"
        )


class DenseModel(nn.Module, ABC):
    """From dense values and embeddings to outputs; tables are elsewhere, see `Recommender`.

    The two halves let the dense work run while embeddings are on the wire::

        dense [B, D] --begin--> begun --+
                                        +--finish--> outputs, [B] say
        embeddings of B samples --------+

    Both work sample by sample, so that outputs do not depend on who else is in the batch, and both take a batch
    without samples, whose backward pass gives gradients of zero.
    """

    def begin(self, dense: Tensor) -> Tensor:
        """Do the work that needs no embeddings; here, there is none.

        Args:
            dense: [B, D] float32; D may be 0.

        Returns:
            What `finish` takes; B rows.
        """
        return dense

    @abstractmethod
    def finish(self, begun: Tensor, embeddings: Embeddings, context: DropoutContext | None = None) -> Any:
        """Compute the outputs.

        Args:
            begun: from `begin`.
            embeddings: pooled features in the order that the model was made for, and its sequence features; some
                held once for several samples.
            context: what dropout's choices depend on, with the B numbers of the samples; None: nothing is dropped.

        Returns:
            Of a model of clicks [B], or [B, L] for several labels; sigmoid makes them probabilities of a click.
        """

    def forward(self, dense: Tensor, embeddings: Embeddings, context: DropoutContext | None = None) -> Any:
        """`begin`, then `finish`."""
        return self.finish(self.begin(dense), embeddings, context)

    @abstractmethod
    def loss_sum(self, output: Any, batch: Batch) -> Tensor:
        """Add up the loss of this rank's samples; ranks' sums add up.

        Args:
            output: from `finish`.
            batch: with the labels.

        Returns:
            Scalar, differentiable in `output`, to be divided by the global batch size; 0 for no samples.
        """


class ClickModel(DenseModel):
    """From dense values and embeddings to a logit for each label of a sample; its loss is `label_loss`."""

    label_kind: LabelKind = "binary"
    """What it learns: real labels are predicted as they are, without a sigmoid."""

    def loss_sum(self, output: Tensor, batch: Batch) -> Tensor:
        """See `DenseModel.loss_sum`."""
        return label_loss(output, batch.labels, batch.weights, kind=self.label_kind)


class MLP(nn.Module):
    """Layers of x <- drop(relu(W x + b)), and no other kind: a logit needs a linear map after them.

    Args:
        sizes: columns of the input, then of each layer; one number alone makes an MLP that changes nothing.
        dropout: chance of an entry to be dropped after each layer, in [0, 1).
        generator: where the weights come from; it moves on.
    """

    def __init__(self, sizes: Sequence[int], *, dropout: float = 0.0, generator: torch.Generator) -> None:
        super().__init__()
        self.out_features = sizes[-1]
        self.layers = nn.ModuleList(
            make_linear(sizes[i], sizes[i + 1], generator=generator) for i in range(len(sizes) - 1)
        )
        self._dropout = dropout

    def forward(self, x: Tensor, context: DropoutContext | None = None) -> Tensor:
        """Run all layers, [B, sizes[0]] -> [B, sizes[-1]]; without a context nothing is dropped."""
        for index, layer in enumerate(self.layers):
            if context is None or not self._dropout:
                x = layer(x, rectify=True)
            else:
                x = context.drop(layer(x), self._dropout, layer=index, rectify=True)
        return x


class DLRM(ClickModel):
    """Deep learning recommendation model (Naumov et al. 2019, arXiv 1906.00091).

        v_0 = bottom(dense)                              [d]; left out where D = 0
        v_1 .. v_F = embeddings                          [d] each
        z   = concat(v_0, dots of every two v)           and v_1 .. v_F with `embeddings_in_top`
        logit = w . top(z) + b

    Every layer of both MLPs ends in a rectifier, that of v_0 too. Dropout is in the top MLP only, since the bottom
    MLP runs before the step's other parts.

    Args:
        options: `bottom`, `top`, `embeddings_in_top` and `dropout` are read.
        num_dense: D.
        pooled_dims: feature -> columns, in the order of the pooled embeddings; all equal.
        num_labels: L, outputs of a sample.
        generator: where the weights come from; it moves on.

    Raises:
        RecipeError: dims differ, or there is nothing to multiply with one another.
    """

    def __init__(
        self,
        options: ModelOptions,
        *,
        num_dense: int,
        pooled_dims: Mapping[str, int],
        num_labels: int = 1,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self._dim = _common_dim(pooled_dims)
        self._embeddings_in_top = options.embeddings_in_top
        self.bottom = MLP([num_dense, *options.bottom, self._dim], generator=generator) if num_dense else None
        num_vectors = len(pooled_dims) + (self.bottom is not None)
        self.dots = PairwiseDots(num_vectors)
        width = self.dots.num_pairs
        width += self._dim * (num_vectors if options.embeddings_in_top else self.bottom is not None)
        if width == 0:
            raise RecipeError(
                f"dlrm has only the feature {next(iter(pooled_dims))!r} and no dense columns, so no two vectors to "
                "multiply: set model.embeddings_in_top = true or name more features"
            )
        self.top = MLP([width, *options.top], dropout=options.dropout, generator=generator)
        self.logit = make_linear(self.top.out_features, num_labels, generator=generator)

    def begin(self, dense: Tensor) -> Tensor:
        """Run the bottom MLP: [B, D] -> [B, d]; [B, 0] where there are no dense columns."""
        if self.bottom is None:
            return dense
        begun: Tensor = self.bottom(dense)
        return begun

    def finish(self, begun: Tensor, embeddings: Embeddings, context: DropoutContext | None = None) -> Tensor:
        """Multiply, and run the top MLP; see `DenseModel.finish`."""
        pooled = embeddings.pooled()
        vectors = pooled if self.bottom is None else torch.cat([begun, pooled], 1)
        dots = self.dots(vectors.view(-1, vectors.shape[1] // self._dim, self._dim))
        kept = vectors if self._embeddings_in_top else begun
        return _of_labels(self.logit(self.top(torch.cat([kept, dots], 1), context)))


def _of_labels(logits: Tensor) -> Tensor:
    """[B, L] -> [B] where there is one label."""
    return logits.squeeze(1) if logits.shape[1] == 1 else logits


def _common_dim(pooled_dims: Mapping[str, int]) -> int:
    if not pooled_dims:
        raise RecipeError("dlrm has no features with embeddings: name at least one in [log.features]")
    first, dim = next(iter(pooled_dims.items()))
    for feature, other in pooled_dims.items():
        if other != dim:
            raise RecipeError(
                f"dlrm multiplies all embeddings with one another, but {first!r} has {dim} columns and {feature!r} "
                f'{other}: give their tables the same dim, or choose model.kind = "dcn"'
            )
    return dim


class PairwiseDots(nn.Module):
    """Dot products of each vector with those before it (Naumov et al. 2019, arXiv 1906.00091).

    For F = 4 vectors a, b, c, d, the lower triangle row by row: ba, ca, cb, da, db, dc.

    Float32 on a CPU goes sample by sample through a compiled loop, so that only the triangle is computed, in the
    first-level cache: about nine times as fast forward, and five times backward, as what other devices do: one batched
    product X X^T and one gather of the triangle.
    """

    def __init__(self, num_vectors: int) -> None:
        super().__init__()
        self.num_vectors = num_vectors
        self.num_pairs = num_vectors * (num_vectors - 1) // 2
        row, column = torch.tril_indices(num_vectors, num_vectors, -1)
        self._places: Tensor
        self.register_buffer("_places", row * num_vectors + column, persistent=False)

    def forward(self, vectors: Tensor) -> Tensor:
        """[B, F, d] floating to [B, num_pairs], differentiable once; B F^2 d multiply-adds, and as many backward."""
        if vectors.shape[1] != self.num_vectors:
            raise DataError(
                f"{vectors.shape[1]} vectors of each sample, but the model was made for {self.num_vectors}: give it "
                "those features"
            )
        is_compiled = vectors.device.type == "cpu" and vectors.dtype == torch.float32
        if torch.compiler.is_exporting() or not is_compiled:
            return torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1).index_select(1, self._places)
        result: Tensor = _Dots.apply(vectors)  # type: ignore[no-untyped-call]
        return result


class _Dots(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, vectors: Tensor) -> Tensor:
        ctx.save_for_backward(vectors)
        num_vectors = vectors.shape[1]
        dots = vectors.new_empty(len(vectors), num_vectors * (num_vectors - 1) // 2)
        multiply_pairs(vectors.detach().contiguous().numpy(), dots.numpy())
        return dots

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> Tensor:
        (vectors,) = ctx.saved_tensors
        gradient = torch.empty(vectors.shape)
        multiply_pairs_backward(vectors.detach().contiguous().numpy(), upstream.contiguous().numpy(), gradient.numpy())
        return gradient


class DCN(ClickModel):
    """Deep and cross network, version 2 (Wang et al. 2021, arXiv 2008.13535).

        x_0 = concat(dense, embeddings)                  [n]
        stacked:   logit = w . deep(cross(x_0)) + b
        parallel:  logit = w . concat(cross(x_0), deep(x_0)) + b

    Embeddings may have any widths. Nothing of it can start before the embeddings are there.

    Args:
        options: `structure`, `cross_layers`, `low_rank`, `deep` and `dropout` are read.
        num_dense: D.
        pooled_dims: feature -> columns, in the order of the pooled embeddings.
        num_labels: L, outputs of a sample.
        generator: where the weights come from; it moves on.

    Raises:
        RecipeError: there is no input at all.
    """

    def __init__(
        self,
        options: ModelOptions,
        *,
        num_dense: int,
        pooled_dims: Mapping[str, int],
        num_labels: int = 1,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        width = num_dense + sum(pooled_dims.values())
        if width == 0:
            raise RecipeError("dcn has neither dense columns nor features: name some in [log] and [log.features]")
        self._is_parallel = options.structure == "parallel"
        self.cross = CrossNetwork(width, options.cross_layers, low_rank=options.low_rank, generator=generator)
        self.deep = MLP([width, *options.deep], dropout=options.dropout, generator=generator)
        last = self.deep.out_features + (width if self._is_parallel else 0)
        self.logit = make_linear(last, num_labels, generator=generator)

    def finish(self, begun: Tensor, embeddings: Embeddings, context: DropoutContext | None = None) -> Tensor:
        """Run the cross network and the deep MLP; see `DenseModel.finish`."""
        pooled = embeddings.pooled()
        x0 = torch.cat([begun, pooled], 1)
        crossed = self.cross(x0)
        deep = self.deep(x0 if self._is_parallel else crossed, context)
        return _of_labels(self.logit(torch.cat([crossed, deep], 1) if self._is_parallel else deep))


class CrossNetwork(nn.Module):
    """The cross network of DCN-v2 (Wang et al. 2021, arXiv 2008.13535).

        x_{l+1} = x_0 * (W_l x_l + b_l) + x_l            with * entry by entry
        W_l = U_l V_l^T                                  of low rank r, where asked for: U_l, V_l [n, r]

    Cost for each layer and sample: n^2 multiply-adds, or 2 n r of low rank.
    """

    def __init__(self, width: int, num_layers: int, *, low_rank: int | None = None, generator: torch.Generator) -> None:
        super().__init__()
        self.narrow = nn.ModuleList(
            make_linear(width, low_rank, bias=False, generator=generator)
            for _ in range(num_layers)
            if low_rank is not None
        )
        self.wide = nn.ModuleList(make_linear(low_rank or width, width, generator=generator) for _ in range(num_layers))

    def forward(self, x0: Tensor) -> Tensor:
        """Run all layers: [B, n] -> [B, n]."""
        x = x0
        for index, wide in enumerate(self.wide):
            inner = self.narrow[index](x) if self.narrow else x
            x = torch.addcmul(x, x0, wide(inner))
        return x

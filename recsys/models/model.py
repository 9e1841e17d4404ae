"""What every model of clicks is: a part that needs no embeddings, a part that does, and the loss of both."""

from abc import ABC, abstractmethod

import torch.nn.functional as F
from torch import Tensor, nn

from windrow.recsys.batch import Batch
from windrow.recsys.embeddings import Embeddings
from windrow.training.dropout import DropoutContext

__all__ = ["ClickModel"]


class ClickModel(nn.Module, ABC):
    """From dense values and embeddings to one logit for each sample; tables live elsewhere, see `Recommender`.

    The two halves let the dense work run while embeddings are on the wire::

        dense [B, D] --begin--> begun --+
                                        +--finish--> logits [B]
        embeddings of B samples --------+

    Both work sample by sample, so that logits do not depend on who else is in the batch, and both take a batch
    without samples, whose backward pass gives gradients of zero.
    """

    @abstractmethod
    def begin(self, dense: Tensor) -> Tensor:
        """Do the work that needs no embeddings.

        Args:
            dense: [B, D] float32; D may be 0.

        Returns:
            What `finish` takes; B rows.
        """

    @abstractmethod
    def finish(self, begun: Tensor, embeddings: Embeddings, context: DropoutContext | None = None) -> Tensor:
        """Compute the logits.

        Args:
            begun: from `begin`.
            embeddings: pooled features in the order that the model was made for, and its sequence features; some
                held once for several samples.
            context: what dropout's choices depend on, with the B numbers of the samples; None: nothing is dropped.

        Returns:
            [B]; sigmoid makes them probabilities of a click.
        """

    def forward(self, dense: Tensor, embeddings: Embeddings, context: DropoutContext | None = None) -> Tensor:
        """`begin`, then `finish`."""
        return self.finish(self.begin(dense), embeddings, context)

    def loss_sum(self, logits: Tensor, batch: Batch) -> Tensor:
        """Add up the binary cross entropy over this rank's samples; ranks' sums add up.

        Args:
            logits: [B], from `finish`.
            batch: with the labels.

        Returns:
            Scalar, differentiable in `logits`, to be divided by the global batch size; 0 for no samples.
        """
        return F.binary_cross_entropy_with_logits(logits, batch.labels, reduction="sum")

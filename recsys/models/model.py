"""What every model of clicks is: a part that needs no embeddings, a part that does, and the loss of both."""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import torch.nn.functional as F
from torch import Tensor, nn

from windrow.recsys.batch import Batch
from windrow.training.dropout import DropoutContext

if TYPE_CHECKING:
    from windrow.recsys.torchrec_adapter import JaggedTensor

__all__ = ["ClickModel"]


class ClickModel(nn.Module, ABC):
    """From dense values and embeddings to one logit for each sample; tables live elsewhere, see `Recommender`.

    The two halves let the dense work run while embeddings are on the wire::

        dense [B, D] --begin--> begun --+
                                        +--finish--> logits [B]
        pooled [B, sum of dims] --------+
        sequences --------------------- +

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
    def finish(
        self,
        begun: Tensor,
        pooled: Tensor,
        sequences: "dict[str, JaggedTensor] | None" = None,
        context: DropoutContext | None = None,
    ) -> Tensor:
        """Compute the logits.

        Args:
            begun: from `begin`.
            pooled: [B, sum of dims] float32, pooled embeddings of the features in the order the model was made for.
            sequences: unpooled embeddings of each sequence feature; None where there are none.
            context: what dropout's choices depend on, with the B numbers of the samples; None: nothing is dropped.

        Returns:
            [B]; sigmoid makes them probabilities of a click.
        """

    def forward(
        self,
        dense: Tensor,
        pooled: Tensor,
        sequences: "dict[str, JaggedTensor] | None" = None,
        context: DropoutContext | None = None,
    ) -> Tensor:
        """`begin`, then `finish`."""
        return self.finish(self.begin(dense), pooled, sequences, context)

    def loss_sum(self, logits: Tensor, batch: Batch) -> Tensor:
        """Add up the binary cross entropy over this rank's samples; ranks' sums add up.

        Args:
            logits: [B], from `finish`.
            batch: with the labels.

        Returns:
            Scalar, differentiable in `logits`, to be divided by the global batch size; 0 for no samples.
        """
        return F.binary_cross_entropy_with_logits(logits, batch.labels, reduction="sum")

"""The one place where FBGEMM is imported: tables that learn within the backward pass.

FBGEMM's table-batched embedding looks all tables up in one call. Its backward pass adds up the gradients of a row
that occurs several times and then updates that row, so neither a dense gradient nor a second pass over the tables is
needed ("exact" optimisers). With g the summed gradient of a row of D columns::

    sgd              w -= learning_rate * g
    adagrad          s += g ** 2;             w -= learning_rate * g / (sqrt(s) + eps)
    rowwise_adagrad  s += sum(g ** 2) / D;    w -= learning_rate * g / (sqrt(s) + eps)
"""

import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType, SparseType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import BoundsCheckMode, EmbeddingLocation, PoolingMode
from fbgemm_gpu.split_table_batched_embeddings_ops_training import ComputeDevice, SplitTableBatchedEmbeddingBagsCodegen
from torch import Tensor

from windrow.recsys.tables.options import TableOptions
from windrow.recsys.tables.table import TableBatch
from windrow.training.shard_files import LocalTable

__all__ = ["FBGEMMTableBatch"]

_OPTIMIZERS = {
    "sgd": EmbOptimType.EXACT_SGD,
    "adagrad": EmbOptimType.EXACT_ADAGRAD,
    "rowwise_adagrad": EmbOptimType.EXACT_ROWWISE_ADAGRAD,
}


class FBGEMMTableBatch(TableBatch):
    """Members in one flat FBGEMM storage, fp32 or fp16, updated by ``backward()`` itself.

    Results are always float32, and so are the accumulators. fp16 values are rounded to nearest, on GPUs too, where
    FBGEMM can round stochastically: its draws would come from a global generator, and a resumed run would differ.
    Values are zero until `initialise` or `load_state` writes them.

    Args:
        members, lookups, pooled: see `TableBatch`.
        options: optimiser (not adam), its settings, and precision.
        device: CPU or a CUDA device. The batch cannot move later.
    """

    def __init__(
        self,
        members: tuple[LocalTable, ...],
        lookups: tuple[int, ...],
        options: TableOptions,
        *,
        pooled: bool = True,
        device: torch.device | None = None,
    ) -> None:
        super().__init__(members, lookups, pooled=pooled)
        assert not options.moves_every_row, f"{options.optimizer} needs dense gradients"
        device = device or torch.device("cpu")
        on_cpu = device.type == "cpu"
        location = EmbeddingLocation.HOST if on_cpu else EmbeddingLocation.DEVICE
        compute = ComputeDevice.CPU if on_cpu else ComputeDevice.CUDA
        kernel = SplitTableBatchedEmbeddingBagsCodegen(
            # FBGEMM takes a batch without any row for one that lives elsewhere: each member gets one row at least.
            [(max(member.num_rows, 1), member.dim, location, compute) for member in members],
            feature_table_map=list(lookups),
            weights_precision=SparseType.FP16 if options.precision == "fp16" else SparseType.FP32,
            output_dtype=SparseType.FP32,
            optimizer=_OPTIMIZERS[options.optimizer],
            learning_rate=options.learning_rate,
            eps=options.eps,
            stochastic_rounding=False,
            pooling_mode=PoolingMode.SUM if pooled else PoolingMode.NONE,
            # The collection has checked the ids, all of them at once, where the user's batch came in.
            bounds_check_mode=BoundsCheckMode.NONE,
            device=device,
        )
        # Inside a tuple the kernel is no submodule: its weights are not parameters that someone else could reduce,
        # update, count or move.
        self._kernel = (kernel,)
        self._weights: list[Tensor] = [
            values[: member.num_rows] for values, member in zip(kernel.split_embedding_weights(), members, strict=True)
        ]
        # One list of states for each member; no lists at all where the optimiser keeps nothing.
        self._squares: list[Tensor] = [
            squares[: member.num_rows]
            for (squares,), member in zip(kernel.split_optimizer_states(), members, strict=False)
        ]

    def forward(self, values: Tensor, offsets: Tensor, per_sample_weights: Tensor | None = None) -> Tensor:
        """See `TableBatch.forward`."""
        (kernel,) = self._kernel
        if torch.is_inference_mode_enabled():
            # FBGEMM has a CPU kernel for no_grad, but none for inference_mode.
            with torch.inference_mode(mode=False), torch.no_grad():
                return self.forward(values, offsets, per_sample_weights)
        looked_up: Tensor = kernel(values, offsets, per_sample_weights)
        return looked_up

    def rows(self, values: Tensor, offsets: Tensor) -> Tensor:
        """See `TableBatch.rows`: the kernel was made for one of the two."""
        return self.forward(values, offsets)

    def step(self) -> None:
        """See `TableBatch.step`."""

    def set_learning_rate(self, learning_rate: float) -> None:
        """See `TableBatch.set_learning_rate`."""
        (kernel,) = self._kernel
        kernel.set_learning_rate(learning_rate)

    def _stored(self, member: int) -> dict[str, Tensor]:
        squares = {"sum_of_squares": self._squares[member]} if self._squares else {}
        return {"weight": self._weights[member], **squares}

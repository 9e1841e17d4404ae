"""TorchRec's containers of sparse features, which batches are made of. No other module imports torchrec at once."""

import logging

from torchrec.sparse.jagged_tensor import JaggedTensor, KeyedJaggedTensor, KeyedTensor

__all__ = ["JaggedTensor", "KeyedJaggedTensor", "KeyedTensor"]

# torchrec asks PyTorch a question that PyTorch has renamed, so that every process would begin by saying so.
logging.getLogger("torch.fx._symbolic_trace").setLevel(logging.ERROR)

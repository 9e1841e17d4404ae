"""The one place where torchrec is imported: its containers of sparse features, which batches are made of."""

import logging

from torchrec.sparse.jagged_tensor import JaggedTensor, KeyedJaggedTensor, KeyedTensor

__all__ = ["JaggedTensor", "KeyedJaggedTensor", "KeyedTensor"]

# torchrec asks PyTorch a question that PyTorch has renamed, so that every process would begin by saying so.
logging.getLogger("torch.fx._symbolic_trace").setLevel(logging.ERROR)

"""The section [wire] of a recipe: in which number formats things travel, and by which way sums do."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch

from windrow.comm.codec import Codec, CodecName, make_codec

__all__ = ["Topology", "WireOptions"]

Topology: TypeAlias = Literal["flat", "hierarchical", "auto"]


@dataclass(frozen=True, kw_only=True, slots=True)
class WireOptions:
    """Number formats between ranks; what stays on a rank is never rounded."""

    vectors: CodecName = "fp32"
    """Of rows that a rank asks others for: features of vertices, rows of embedding tables, pooled vectors."""

    gradients: CodecName = "fp32"
    """Of the gradients of those, on their way back to the rank that owns the rows."""

    sums: CodecName = "fp32"
    """Of the gradients that are summed over all ranks, those of the dense part: each rank adds up a piece in float32,
    and the sum travels once more. Sums of a host are rounded too where `topology` makes some."""

    topology: Topology = "flat"
    """Way of those sums: flat, as the communication library sums over all ranks; hierarchical, within each host first,
    then between hosts; auto, whichever is predicted to be faster on the links that `windrow network` measured here, and
    flat where it did not. It changes sums by rounding only."""

    def vectors_codec(self, dtype: torch.dtype) -> Codec:
        """How rows travel that are kept in this dtype: what is shorter than fp32 travels as it is."""
        return make_codec(self.vectors if dtype == torch.float32 else "fp32")

    def sums_codec(self) -> Codec | None:
        """How gradients travel that are summed; None: as they are, by the library's own all-reduce."""
        return None if self.sums == "fp32" else make_codec(self.sums)

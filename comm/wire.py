"""The recipe section that says in which form numbers travel between ranks."""

from dataclasses import dataclass

from windrow.comm.codec import CodecName, make_codec

__all__ = ["WireOptions"]


@dataclass(frozen=True, kw_only=True, slots=True)
class WireOptions:
    """In which form numbers travel between ranks; fp16 and bf16 halve the bytes and round."""

    vectors: CodecName = "fp32"
    """Rows of features or of embedding tables, and pooled vectors, on their way to the rank that asked for them."""
    gradients: CodecName = "fp32"
    """Gradients of those, on their way back to the owners."""
    sums: CodecName = "fp32"
    """Sums of the gradients of what every rank holds: the dense part, and replicated tables."""

    def __post_init__(self) -> None:
        for name in (self.vectors, self.gradients, self.sums):
            make_codec(name)

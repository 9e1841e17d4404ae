"""windrow.launch."""

"""windrow.comm."""

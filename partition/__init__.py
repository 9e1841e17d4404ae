"""windrow.partition."""

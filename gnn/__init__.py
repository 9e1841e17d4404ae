"""windrow.gnn."""

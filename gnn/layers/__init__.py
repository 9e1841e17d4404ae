"""windrow.gnn.layers."""

"""Embedding tables spread over the ranks of a world, as any plan says."""

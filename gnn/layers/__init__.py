"""Layers that pass messages: one operator per file."""

"""Minibatches of a prepared log, of interactions and of sessions: read, shuffled, transformed, deduplicated."""

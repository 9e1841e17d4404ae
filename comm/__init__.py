"""How rows travel: worlds of ranks, their collectives, row exchange, codecs, gradients, and what all is counted."""

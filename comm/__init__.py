"""How do rows travel? Worlds of ranks, row exchange, codecs, gradients, meters.

Nothing is imported here, so that the command line can report errors before PyTorch is loaded.
"""

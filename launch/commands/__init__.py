"""One module per subcommand of ``windrow``: its help (the docstring and EXAMPLES), its arguments, and what it does."""

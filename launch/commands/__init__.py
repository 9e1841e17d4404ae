"""One module per subcommand of ``windrow``: its options, and what it does."""

"""A log laid out so that the rows of a session stand together (RecD's first two steps)."""

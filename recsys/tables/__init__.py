"""In what form is a row stored? Embedding tables of one rank, their optimisers and first values."""

"""Which rows are also kept here: rankings of vertices, and stores of rows that hold copies of remote ones."""

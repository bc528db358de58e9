"""The tools, one a file: each module has a function `make` that returns its tool. Nothing else has to be changed."""

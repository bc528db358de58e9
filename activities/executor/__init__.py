"""Hand-off to an executor and its supervision."""

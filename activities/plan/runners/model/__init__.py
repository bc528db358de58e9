"""Steps that ask a model."""

"""Proof of an episode as a file: an in-toto statement in a signed envelope."""

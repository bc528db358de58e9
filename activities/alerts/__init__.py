"""Tells people that an episode needs them."""

"""Alerts that tell people when an episode needs them."""

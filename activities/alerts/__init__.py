"""Alerts for people when an episode needs them."""

"""A project's own checks: found in its files, and chosen by what they do in a first run."""

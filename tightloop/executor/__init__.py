"""The contract between an episode and whoever does the work."""

"""Discovery of a project's own checks in its files, and selection based on a trial run of each."""

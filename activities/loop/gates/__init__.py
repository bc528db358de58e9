"""Running the gates of a project."""

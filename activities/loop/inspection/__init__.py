"""Looking at a project before it is planned."""

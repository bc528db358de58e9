"""The activities of the project loop."""

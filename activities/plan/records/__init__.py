"""What a plan leaves on disk."""

"""Git steps and pull request texts."""

"""The commands about the Model Context Protocol."""

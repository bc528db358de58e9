"""One attempt of one step."""

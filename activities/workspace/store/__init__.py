"""The private store of trees: our own objects, index and references, and nothing of the user's repository."""

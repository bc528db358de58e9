"""Private git store of trees, with its own objects, index and refs, separate from the user's repository."""

"""The kernel of every run: messages, questions, reporting, activities, and its life from start to end."""

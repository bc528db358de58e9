"""Episodes that are stuck: each has to be noticed within five iterations."""

"""The graph at work: what is ready, what follows a failure, what is taken back, what a revision changes."""

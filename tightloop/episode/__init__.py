"""Episodes: request, state, and the pure rules of the loop."""

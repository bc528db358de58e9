"""What a step may do: judged before the act."""

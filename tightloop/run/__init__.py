"""What every run has, whatever its kind: questions, commands, a timeline, and the state that never goes back."""

"""Parts that all kinds of runs share: questions, commands, the timeline, and the state that is kept after a restore."""

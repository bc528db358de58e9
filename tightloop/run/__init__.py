"""Parts shared by all kinds of runs: questions, commands, timeline and the state that survives a restore."""

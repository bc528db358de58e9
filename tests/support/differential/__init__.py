"""Random schedules of messages, failures and restarts, run on two commits and compared by what they lead to."""

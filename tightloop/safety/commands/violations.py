"""Command violations: what a rule about commands can report."""

from tightloop.safety.commands.tables import VIOLATIONS

DESTROYS = VIOLATIONS["destructive_command"]
RISKY = VIOLATIONS["risky_command"]
REWRITES = VIOLATIONS["rewrites_history"]
RUNS_REMOTE = VIOLATIONS["runs_remote_code"]
PUBLISHES = VIOLATIONS["publishes"]
CARRIES_AWAY = VIOLATIONS["carries_data_away"]
SENDS = VIOLATIONS["sends_data"]
READS_SECRETS = VIOLATIONS["reads_secrets"]
NO_CHECKS = VIOLATIONS["skips_hooks"]
COSTLY = VIOLATIONS["costly_command"]
ROOT = VIOLATIONS["needs_root"]
LOADS_CODE = VIOLATIONS["loads_code"]
HIDDEN = VIOLATIONS["hidden_command"]
UNREADABLE = VIOLATIONS["unreadable_command"]

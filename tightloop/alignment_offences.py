"""What a command can be blamed for: the offences, how to stand to each, and what to do in its place."""

from typing import NamedTuple

from tightloop.alignment import Stand, Topic


class Offence(NamedTuple):
    """What a rule says of a command."""

    rule: str
    topic: Topic
    stand: Stand
    mend: str


DESTROYS = Offence(
    "destructive_command",
    Topic.DAMAGE,
    Stand.NO,
    "a command that touches only files of this project which can be made again",
)
RISKY = DESTROYS._replace(rule="risky_command", stand=Stand.ASK)
REWRITES = Offence(
    "rewrites_history",
    Topic.DAMAGE,
    Stand.NO,
    "leave git's history, branches and uncommitted work alone: the loop has checkpoints for that",
)
RUNS_REMOTE = Offence(
    "runs_remote_code",
    Topic.DAMAGE,
    Stand.NO,
    "download to a file with a pinned version and checksum, look at it, then run it",
)
PUBLISHES = Offence("publishes", Topic.PRIVACY, Stand.ASK, "leave publishing and pushing to a person")
CARRIES_AWAY = Offence("carries_data_away", Topic.PRIVACY, Stand.NO, "send nothing of this host to others")
SENDS = CARRIES_AWAY._replace(
    rule="sends_data", stand=Stand.ASK, mend="send only to this host, or say why it must go there"
)
READS_SECRETS = Offence("reads_secrets", Topic.PRIVACY, Stand.ASK, "do not read keys and credentials of the user")
NO_CHECKS = Offence("skips_hooks", Topic.CHECKS, Stand.ASK, "let hooks and checks run")
COSTLY = Offence("costly_command", Topic.COST, Stand.ASK, "a bounded run of a few minutes")
ROOT = Offence("needs_root", Topic.DAMAGE, Stand.ASK, "work inside the project, without the rights of root")

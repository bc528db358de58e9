"""Every command: its name, where its code is, what it does, and the panel of the help that shows it.

The code of a command is loaded when the command is used: help and completion of a shell only need what stands here.
"""

from functools import cached_property
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

START, LOOK, PROOF, ANSWER, STEER, HOST = "Start", "Look", "Prove", "Answer", "Steer", "This host"
RUN, TEXT = "Run", "Look at a plan's text"


class Command(TyperCommand):
    """A command by its name; its arguments and options are those of the function that is its code."""

    def __init__(self, name: str, code: str, help: str, panel: str | None = None) -> None:
        """Take `module:function` below this package as the code."""
        super().__init__(name, help=help, rich_help_panel=panel)
        self._code = code

    @cached_property
    def loaded(self) -> Any:
        """The command with its arguments and options, of the class that Typer makes."""
        module, _, function = self._code.partition(":")
        single = typer.Typer(add_completion=False)
        made = single.command(self.name, help=self.help, rich_help_panel=self.rich_help_panel)
        made(getattr(import_module(f"{__package__}.{module}"), function))
        return typer.main.get_command(single)

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Continue with the loaded command: what is run and what is completed both begin here."""
        return self.loaded.make_context(info_name, args, parent, **extra)


def group(name: str, help: str, panel: str, *commands: Command) -> TyperGroup:
    """Return the commands that follow a common word."""
    return TyperGroup(name=name, help=help, rich_help_panel=panel, commands=commands, no_args_is_help=True)


COMMANDS = (
    Command("start", "start:start", "Start an episode: one goal, pursued until its checks pass.", START),
    Command("code", "start:code", "Start an episode with the built-in coder, which needs nothing but a model.", START),
    Command("fork", "start:fork", "Start a new episode from a checkpoint, in a git worktree of its own.", START),
    Command(
        "list",
        "look.workflows:list_workflows",
        "List episodes and plans, the newest first, and what waits for a person.",
        LOOK,
    ),
    Command("status", "look.workflows:status", "Show the state, what waits for a person, and how to answer.", LOOK),
    Command(
        "watch",
        "look.workflows:watch",
        "Show every event until the end; exit code 0 on success, 1 otherwise. Ctrl-C leaves it running.",
        LOOK,
    ),
    Command("timeline", "look.workflows:timeline", "Show the events of all runs, newest last.", LOOK),
    Command("checkpoints", "look.workflows:checkpoints", "List the checkpoints of an episode.", LOOK),
    Command(
        "diff",
        "look.workflows:diff",
        "Show how the files, or the plan, of an episode changed between two checkpoints.",
        LOOK,
    ),
    Command(
        "export",
        "look.export:export",
        "Write everything: request, state, events, records, decisions, history of each run. Default: JSON on stdout.",
        LOOK,
    ),
    Command(
        "inbox",
        "look.workflows:inbox",
        "Show every question that waits for a person, oldest first, with the commands that answer it.",
        LOOK,
    ),
    Command(
        "digest",
        "look.workflows:digest",
        "Show what happened on a day: done, blocked and by what, spent, what waits.",
        LOOK,
    ),
    Command(
        "metrics",
        "look.metrics:metrics",
        "Show success, iterations, tokens, cost, time, findings and interventions of a time range.",
        LOOK,
    ),
    Command(
        "proof",
        "proof:proof",
        "Show how the success of an episode or a plan was proven. Exit code 1: it was not.",
        PROOF,
    ),
    Command("verify", "proof:verify", "Verify a proof offline. Exit code 0: proven; 1: not; 2: wrong use.", PROOF),
    Command("answer", "steer:answer", "Answer a question with one of its options.", ANSWER),
    Command("approve", "steer:approve", "Approve a gate, or all gates of a review window.", ANSWER),
    Command("reject", "steer:reject", "Reject a gate; its step then fails with class policy.", ANSWER),
    Command("respond", "steer:respond", "Send the planner of an episode a message; it decides no question.", ANSWER),
    Command("pause", "steer:pause", "Pause at the next safe point; running steps may finish.", STEER),
    Command(
        "resume", "steer:resume", "End a pause that needs no decision; edits that you made meanwhile are kept.", STEER
    ),
    Command(
        "top-up",
        "steer:top_up",
        "Raise the budget, and continue where a spent budget is the reason for a pause.",
        STEER,
    ),
    Command("amend", "steer:amend", "Change an episode's goal, definition of done, executor or planner.", STEER),
    Command(
        "restore", "steer:restore", "Go back to a checkpoint, state and files; a closed episode is opened again.", STEER
    ),
    Command("move", "steer:move", "Go on with an episode on another host, such as when its own is lost.", STEER),
    Command(
        "cancel",
        "steer:cancel",
        "End an episode or a plan for good; an episode's files stay, a plan undoes its steps where it says so.",
        STEER,
    ),
    Command(
        "up", "host.commands:up", "Run the embedded Temporal server, a worker and the web page until Ctrl-C.", HOST
    ),
    Command(
        "gc",
        "host.commands:gc",
        "Free what closed episodes left on this host; what is open, or ended lately, is kept. Safe beside workers.",
        HOST,
    ),
    Command(
        "keep",
        "host.commands:keep",
        "Keep what an episode or a plan left on this host from `tightloop gc`, however old it gets.",
        HOST,
    ),
    Command(
        "open",
        "host.commands:open_page",
        "Open the page in a browser and sign it in; prints the link, which works once and for a minute.",
        HOST,
    ),
    Command(
        "gateway",
        "host.commands:gateway",
        "Run the page and the HTTP API alone, for a cluster; `tightloop up` runs them anyway.",
        HOST,
    ),
    Command("ui", "host.commands:ui", "Print a link to the Temporal Web UI that signs one browser in.", HOST),
    Command(
        "env",
        "host.commands:env",
        'Print the variables with which the `temporal` command talks to this server: eval "$(tightloop env)".',
        HOST,
    ),
    Command(
        "replay",
        "host.commands:replay",
        "Replay one or many histories against the current code; exit code 1 when it does not fit.",
        HOST,
    ),
    Command(
        "doctor",
        "host.commands:doctor",
        "Check this host and the Temporal server; exit code 1 when something needed is missing.",
        HOST,
    ),
    Command(
        "setup",
        "host.commands:setup",
        "Set a namespace of Temporal up: search attributes, retention. What is there already stays.",
        HOST,
    ),
    Command("settings", "host.commands:settings", "Show the settings in force; secrets are masked.", HOST),
    group(
        "worker",
        "Workers for a Temporal server of your own.",
        HOST,
        Command(
            "run",
            "host.commands:run",
            "Run a worker for a Temporal server that is already there, until Ctrl-C or SIGTERM.",
        ),
        Command(
            "install",
            "host.launch_agent:install",
            "Let macOS start a worker at each sign-in, for windows that only a session at the screen has.",
        ),
        Command("uninstall", "host.launch_agent:uninstall", "End it, and start it no more."),
    ),
    group(
        "host",
        "The name of this host, under which its workers get the work that only they can do.",
        HOST,
        Command("show", "host.commands:show_host", "Show the name, and the hosts whose work goes on here."),
        Command(
            "adopt",
            "host.commands:adopt_state",
            "Have the open work of another host go on here, whose state home is this one now.",
        ),
    ),
    group(
        "deploy",
        "Builds of the workers, where worker.deployment is set: upgrade while episodes run.",
        HOST,
        Command("status", "host.commands:show_builds", "Show the builds: state, what is open on each, live workers."),
        Command(
            "promote",
            "host.commands:promote",
            "Let new workflows start on this installation's build, once its workers live and it fits the histories.",
        ),
        Command(
            "ramp", "host.commands:ramp", "Let only a share of new workflows start on it; the checks are the same."
        ),
    ),
    group(
        "plan",
        "Plans: steps with their contracts, run as a graph. A first one: tightloop plan run plan.yaml. "
        "The other commands (status, watch, answer, cancel, ...) take the id of a plan, too.",
        START,
        Command(
            "run",
            "plan.commands:run",
            "Run a plan and follow it; exit code 0 when it completed. Ctrl-C leaves it running.",
            RUN,
        ),
        Command(
            "replan",
            "plan.commands:replan",
            "Change a running plan; completed and running steps stay as they are.",
            RUN,
        ),
        Command(
            "run-step", "plan.commands:run_step", "Start one step now, even during a pause, or a failed one again.", RUN
        ),
        Command(
            "validate",
            "plan.check:validate",
            "Report every problem of plan files; exit code 1 when one of them cannot run.",
            TEXT,
        ),
        Command(
            "graph",
            "plan.check:graph",
            "Print a plan as a Mermaid flowchart, with the states of its steps once it was started.",
            TEXT,
        ),
        Command(
            "show", "plan.check:show", "Show the steps of a plan in order, with needs, budgets, rules and gates.", TEXT
        ),
    ),
    group(
        "loop",
        'Projects: inspect, plan, dispatch, verify. A first one: tightloop loop plan "Add rate limits". '
        "The other commands (status, watch, list, pause, cancel, ...) take the id of such a plan, too.",
        START,
        Command("plan", "loop:plan", "Inspect the project and divide the work into tasks; nothing is started."),
        Command("show", "loop:show_plan", "Show the tasks of a plan and its gates."),
        Command(
            "dispatch",
            "loop:dispatch",
            "Start the tasks of a plan, each as an episode in a worktree of its own.",
        ),
        Command(
            "verify",
            "loop:verify",
            "Run the gates of a plan whose tasks have ended; a failed one is not tried again.",
        ),
    ),
    group(
        "ledger",
        "The ledger: what was recorded of episodes and plans.",
        HOST,
        Command(
            "rebuild",
            "host.commands:rebuild",
            "Enter again what Temporal knows of this host's projects: after ledger.db was lost. Safe beside workers.",
        ),
        Command(
            "upgrade",
            "host.commands:upgrade",
            "Bring the database of database.url, or this host's, with its memory to the newest migration. Stop older "
            "workers first.",
        ),
    ),
    group(
        "memory",
        "The memory of projects: failures, what solved them, and facts.",
        LOOK,
        Command("search", "host.memory:search", "Find failures like one and what solved them; patterns; facts."),
        Command("list", "host.memory:list_entries", "List what is remembered, the newest first."),
        Command("show", "host.memory:show_entry", "Show everything about one entry."),
        Command("forget", "host.memory:forget", "Remove entries for good, or everything of a project."),
        Command("export", "host.memory:export", "Write everything of a project as JSON, one entry a line."),
        Command("stats", "host.memory:stats", "Show how much is remembered, and how often it helped."),
    ),
    group(
        "hooks",
        "Cursor's hooks, which tell of plans that were handed over through its window.",
        HOST,
        Command(
            "show", "host.commands:show_hooks", "Print what Cursor's file of hooks would hold; nothing is changed."
        ),
        Command("install", "host.commands:install_hooks", "Add ours to it; those of others stay, and a copy is kept."),
        Command("remove", "host.commands:remove_hooks", "Take ours out of it again."),
    ),
    group(
        "token",
        "Bearer tokens of the HTTP API and the page.",
        HOST,
        Command("create", "host.commands:create_token", "Make a token and print it; it cannot be shown again."),
        Command("list", "host.commands:list_tokens", "List the tokens, without what would let anybody in."),
        Command("revoke", "host.commands:revoke_token", "End a token and the sessions that were opened with it."),
    ),
    group(
        "mcp",
        "Tools for coding agents and assistants (Model Context Protocol).",
        HOST,
        Command("serve", "mcp.commands:serve", "Serve MCP on standard input and output, or at a Unix socket."),
        Command(
            "install",
            "mcp.commands:install",
            "Add the server to the configuration of Cursor, Claude Code or Codex, and the rules for the agent.",
        ),
    ),
    group(
        "keys",
        "Keys that encrypt and authenticate what Temporal stores.",
        HOST,
        Command("new", "host.commands:new_keys", "Make the key file with a first key."),
        Command("list", "host.commands:list_keys", "List the ids of the keys, the current one first."),
        Command(
            "rotate", "host.commands:rotate_keys", "Add a new current key; the old ones stay, for what they encrypted."
        ),
    ),
)

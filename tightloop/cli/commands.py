"""Table of all commands: name, code location, help and help panel.

Messages to runs are generated from the table of operations. All other code is loaded on use, because help and shell
completion only need this module.
"""

from importlib import import_module
from typing import Any, Literal, NamedTuple

import click

from tightloop.cli.parameters import AS_JSON, BY, REQUIRED, Argument, Option, parameter_of, parameters_of, run_argument
from tightloop.operations import BY_NAME, OPERATIONS

START, LOOK, PROOF, ANSWER, STEER, HOST = "Start", "Look", "Prove", "Answer", "Steer", "This host"
RUN, TEXT = "Run", "Look at a plan's text"
SENTENCES = {operation.cli: operation.summary for operation in OPERATIONS if operation.cli}


class Command(click.Command):
    """Command whose arguments and options come from the signature of its function.

    Args:
        command_path: name with its groups, such as `plan run`.
        code: `module:function` below this package.
        help: text after the sentence from the table of operations.
        panel: help panel.
    """

    def __init__(self, command_path: str, code: str, help: str = "", panel: str = "") -> None:
        super().__init__(command_path.rpartition(" ")[2], help=f"{SENTENCES.get(command_path, '')} {help}".strip())
        self.panel = panel
        self._code = code

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the parameters; loads the code."""
        if self.callback is None:
            module, _, function = self._code.partition(":")
            code = getattr(import_module(f"{__package__}.{module}"), function)
            self.callback, self.params = click.pass_context(code), parameters_of(code)
        return super().get_params(ctx)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; repeatable parameters become a list, or None."""
        ctx.params = {name: list(it) or None if isinstance(it, tuple) else it for name, it in ctx.params.items()}
        return super().invoke(ctx)


class Field(NamedTuple):
    """Field of an operation's request as a parameter; None is not sent."""

    name: str
    declaration: Option | Argument
    kind: Any = str
    default: Any = None


class Verb(Command):
    """Command that sends a message to a run, generated from an operation."""

    def __init__(self, name: str, *fields: Field, panel: str = STEER) -> None:
        self.operation = BY_NAME[name]
        super().__init__(self.operation.cli, "", panel=panel)
        by = () if self.operation.is_anonymous else (Field("by", BY),)
        self.params = [
            run_argument(self.operation.kinds),
            *(parameter_of(field.name, field.kind, field.declaration, field.default) for field in (*fields, *by)),
            parameter_of("as_json", bool, AS_JSON, False),
        ]

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the parameters, without loading code."""
        return click.Command.get_params(self, ctx)

    def invoke(self, ctx: click.Context) -> None:
        """Send the message."""
        from tightloop.cli.steer import send

        send(ctx, self.operation, **ctx.params)


class Group(click.Group):
    """Command group with help panels."""

    def __init__(self, name: str, help: str, panel: str, *commands: click.Command) -> None:
        super().__init__(name, {str(command.name): command for command in commands}, help=help, no_args_is_help=True)
        self.panel = panel

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the commands by panel, with their complete help."""
        panels: dict[str, list[tuple[str, str]]] = {}
        for name, command in self.commands.items():
            panels.setdefault(getattr(command, "panel", "") or "Commands", []).append((name, command.help or ""))
        for panel, rows in panels.items():
            with formatter.section(panel):
                formatter.write_dl(rows)


_REASON = Field("reason", Option(help="Reason, kept in the timeline."))
_RATIONALE = Field("text", Option("--rationale", help="Reason, kept in the record."))
_CHECKPOINT = Field(
    "checkpoint_id", Argument(metavar="CKPT", help="Checkpoint, such as ckpt-2 or 2."), default=REQUIRED
)
_Verdict, _OnCrash = Literal["allow", "ask", "deny"], Literal["ask", "retry", "verify"]
_GATE = Field("question", Argument(metavar="GATE", help="Step or review window. Not needed where only one waits."))


def _amount(name: str, help: str, kind: Any = int) -> Field:
    return Field(name, Option(help=help), kind)


COMMANDS = (
    Command("start", "start:start", panel=START),
    Command("code", "start:code", "Start an episode with the built-in coder, which needs nothing but a model.", START),
    Verb("fork", _CHECKPOINT, Field("id", Option("--id", help="Id of the new episode.")), panel=START),
    Command("list", "now:list_workflows", panel=LOOK),
    Command("status", "now:status", panel=LOOK),
    Command("watch", "look:watch", "Exit code 0 on success, 1 otherwise. Ctrl-C leaves it running.", panel=LOOK),
    Command("timeline", "look:timeline", panel=LOOK),
    Command("checkpoints", "look:checkpoints", panel=LOOK),
    Command("diff", "look:diff", panel=LOOK),
    Command("export", "export:export", "Default: JSON on stdout.", LOOK),
    Command("inbox", "now:inbox", panel=LOOK),
    Command("digest", "look:digest", panel=LOOK),
    Command("metrics", "look:metrics", panel=LOOK),
    Command("proof", "proof:proof", "Exit code 1: it was not.", PROOF),
    Command("verify", "proof:verify", "Exit code 0: proven; 1: not; 2: wrong use.", PROOF),
    Command("answer", "steer:answer", panel=ANSWER),
    Verb(
        "approve",
        _GATE,
        Field("option", Option(help="Option to choose, for a gate with options of its own; see: tightloop status ID.")),
        Field("role", Option(help="Refuse unless the gate asks for this role.")),
        _RATIONALE,
        panel=ANSWER,
    ),
    Verb("reject", _GATE, _RATIONALE, panel=ANSWER),
    Verb("respond", Field("text", Argument(help="The message."), default=REQUIRED), panel=ANSWER),
    Verb("pause", _REASON),
    Verb(
        "resume",
        Field("note", Option(help="A message for the planner; kept in the timeline.")),
        Field("checkpoint_id", Option("--checkpoint", help="Go back to this checkpoint of an episode first.")),
    ),
    Verb(
        "top_up",
        _amount("tokens", "More tokens."),
        _amount("cost_usd", "More dollars.", float),
        _amount("wall_minutes", "More minutes of work.", float),
        _amount("iterations", "More iterations; of an episode."),
        _amount("executor_failures", "More failures of the executor; of an episode."),
        _amount("infrastructure_retries", "More retries after failures of the infrastructure; of an episode."),
        _amount("attempts", "More attempts of steps; of a plan."),
        _amount("api_calls", "More calls to models and hosts; of a plan."),
        _amount("fan_out", "More steps of one template; of a plan."),
        _amount("revisions", "More revisions; of a plan."),
    ),
    Verb(
        "amend",
        Field("goal", Option(help="The new goal.")),
        Field("definition_of_done", Option("--done", help="The new definition of done. Repeatable."), list[str]),
        Field("executor", Option(help="The new executor.")),
        Field("fallback", Option(help="Its fallbacks. Repeatable."), list[str]),
        Field("permissions", Option(help="Answer to an agent that asks for permission."), _Verdict),
        Field(
            "on_crash",
            Option(help="What to do when the worker dies during a delivery."),
            _OnCrash,
        ),
        Field("planner", Option(help="The new planner.")),
    ),
    Verb("restore", _CHECKPOINT, _REASON),
    Verb(
        "move",
        Field("to", Option(help="Host to continue on, or its task queue; see tightloop doctor."), default=REQUIRED),
        Field("workspace", Option(help="Absolute path of the workspace there. Default: as before.")),
        _REASON,
    ),
    Verb("cancel", _REASON),
    Command(
        "up", "host.commands:up", "Run the embedded Temporal server, a worker and the web page until Ctrl-C.", HOST
    ),
    Command(
        "gc",
        "host.commands:gc",
        "Free what closed episodes left on this host; what is open, or ended lately, is kept. Safe beside workers.",
        HOST,
    ),
    Command("keep", "host.commands:keep", panel=HOST),
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
    Group(
        "worker",
        "Workers for a Temporal server of your own.",
        HOST,
        Command(
            "worker run",
            "host.commands:run",
            "Run a worker for a Temporal server that is already there, until Ctrl-C or SIGTERM.",
        ),
        Command(
            "worker install",
            "host.launch_agent:install",
            "Let macOS start a worker at each sign-in, for windows that only a session at the screen has.",
        ),
        Command("worker uninstall", "host.launch_agent:uninstall", "End it, and start it no more."),
    ),
    Group(
        "host",
        "The name of this host, under which its workers get the work that only they can do.",
        HOST,
        Command("host show", "host.commands:show_host", "Show the name, and the hosts whose work goes on here."),
        Command(
            "host adopt",
            "host.commands:adopt_state",
            "Have the open work of another host go on here, whose state home is this one now.",
        ),
    ),
    Group(
        "deploy",
        "Builds of the workers, where worker.deployment is set: upgrade while episodes run.",
        HOST,
        Command(
            "deploy status", "host.commands:show_builds", "Show the builds: state, what is open on each, live workers."
        ),
        Command(
            "deploy promote",
            "host.commands:promote",
            "Let new workflows start on this installation's build, once its workers live and it fits the histories.",
        ),
        Command(
            "deploy ramp",
            "host.commands:ramp",
            "Let only a share of new workflows start on it; the checks are the same.",
        ),
    ),
    Group(
        "plan",
        "Plans: steps with their contracts, run as a graph. A first one: tightloop plan run plan.yaml. "
        "The other commands (status, watch, answer, cancel, ...) take the id of a plan, too.",
        START,
        Command(
            "plan run",
            "plan:run",
            "Follow it; exit code 0 when it completed. Ctrl-C leaves it running.",
            panel=RUN,
        ),
        Verb(
            "replan",
            Field("source", Argument(metavar="FILE", help="The whole new plan. Default: a planner writes it.")),
            Field("rationale", Option(help="Reason, kept in the record.")),
            panel=RUN,
        ),
        Verb(
            "run_step",
            Field("step", Argument(metavar="STEP", help="A step that is ready, or has failed."), default=REQUIRED),
            panel=RUN,
        ),
        Command("plan validate", "plan:validate", "Exit code 1 when a file cannot run.", TEXT),
        Command(
            "plan graph",
            "plan:graph",
            "Print a plan as a Mermaid flowchart, with the states of its steps once it was started.",
            TEXT,
        ),
        Command("plan show", "plan:show_plan", "Also one of a file, with needs, budgets, rules and gates.", panel=TEXT),
    ),
    Group(
        "loop",
        'Projects: inspect, plan, dispatch, verify. A first one: tightloop loop plan "Add rate limits". '
        "The other commands (status, watch, list, pause, cancel, ...) take the id of such a plan, too.",
        START,
        Command("loop plan", "loop:plan"),
        Command("loop show", "loop:show_plan", "Show the tasks of a plan and its gates."),
        Verb(
            "dispatch",
            Field("parallel", Option(help="Number of tasks at the same time. Default: as planned."), int),
            panel="",
        ),
        Command("loop verify", "loop:verify"),
    ),
    Group(
        "ledger",
        "The ledger: what was recorded of episodes and plans.",
        HOST,
        Command(
            "ledger rebuild",
            "host.commands:rebuild",
            "Enter again what Temporal knows of this host's projects: after ledger.db was lost. Safe beside workers.",
        ),
        Command(
            "ledger upgrade",
            "host.commands:upgrade",
            "Bring the database of database.url, or this host's, with its memory to the newest migration. Stop older "
            "workers first.",
        ),
    ),
    Group(
        "memory",
        "The memory of projects: failures, what solved them, and facts.",
        LOOK,
        Command("memory search", "host.memory:search", "Find failures like one and what solved them; patterns; facts."),
        Command("memory list", "host.memory:list_entries", "List what is remembered, the newest first."),
        Command("memory show", "host.memory:show_entry", "Show everything about one entry."),
        Command("memory forget", "host.memory:forget", "Remove entries for good, or everything of a project."),
        Command("memory export", "host.memory:export", "Write everything of a project as JSON, one entry a line."),
        Command("memory stats", "host.memory:stats", "Show how much is remembered, and how often it helped."),
    ),
    Group(
        "hooks",
        "Cursor's hooks, which tell of plans that were handed over through its window.",
        HOST,
        Command(
            "hooks show",
            "host.commands:show_hooks",
            "Print what Cursor's file of hooks would hold; nothing is changed.",
        ),
        Command(
            "hooks install", "host.commands:install_hooks", "Add ours to it; those of others stay, and a copy is kept."
        ),
        Command("hooks remove", "host.commands:remove_hooks", "Take ours out of it again."),
    ),
    Group(
        "token",
        "Bearer tokens of the HTTP API and the page.",
        HOST,
        Command("token create", "host.commands:create_token", "Make a token and print it; it cannot be shown again."),
        Command("token list", "host.commands:list_tokens", "List the tokens, without what would let anybody in."),
        Command("token revoke", "host.commands:revoke_token", "End a token and the sessions that were opened with it."),
    ),
    Group(
        "mcp",
        "Tools for coding agents and assistants (Model Context Protocol).",
        HOST,
        Command("mcp serve", "mcp:serve", "Serve MCP on standard input and output, or at a Unix socket."),
        Command(
            "mcp install",
            "mcp:install",
            "Add the server to the configuration of Cursor, Claude Code or Codex, and the rules for the agent.",
        ),
    ),
    Group(
        "keys",
        "Keys that encrypt and authenticate what Temporal stores.",
        HOST,
        Command("keys new", "host.commands:new_keys", "Make the key file with a first key."),
        Command("keys list", "host.commands:list_keys", "List the ids of the keys, the current one first."),
        Command(
            "keys rotate",
            "host.commands:rotate_keys",
            "Add a new current key; the old ones stay, for what they encrypted.",
        ),
    ),
)

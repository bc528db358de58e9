"""Table of all commands: name, code location, help and help panel.

Messages to runs are generated from the table of operations. All other code is loaded on demand, because help and shell
completion need only this module.
"""

from importlib import import_module
from typing import Any, Literal, NamedTuple

import click

from tightloop.cli.parameters import (
    AS_JSON,
    BY,
    NEW_ID,
    REQUIRED,
    Argument,
    Option,
    parameter_of,
    parameters_of,
    run_argument,
)
from tightloop.operations import BY_NAME, OPERATIONS

START, LOOK, PROOF, ANSWER, STEER, HOST = "Start", "Look", "Prove", "Answer", "Steer", "This host"
RUN, TEXT = "Run", "Inspect a plan"
SENTENCES = {operation.cli: operation.summary for operation in OPERATIONS if operation.cli}


class Command(click.Command):
    """A command whose arguments and options are derived from a function's signature.

    Args:
        command_path: full name of the command, such as `plan run`.
        code: `module:function` below this package.
        help: help text to append to the operation's summary.
        panel: help panel.
    """

    def __init__(self, command_path: str, code: str, help: str = "", panel: str = "") -> None:
        super().__init__(command_path.rpartition(" ")[2], help=f"{SENTENCES.get(command_path, '')} {help}".strip())
        self.panel = panel
        self._code = code

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Import the command's function and return the parameters in its signature."""
        # Click asks for the parameters several times per call: for the parser, the usage line and the completion.
        if self.callback is None:
            module, _, function = self._code.partition(":")
            code = getattr(import_module(f"{__package__}.{module}"), function)
            self.callback, self.params = click.pass_context(code), parameters_of(code)
        return super().get_params(ctx)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. A repeatable parameter is passed as a list, or as None if it is not given."""
        # Click gives an empty tuple if a repeatable parameter was omitted; the commands expect None.
        ctx.params = {name: list(it) or None if isinstance(it, tuple) else it for name, it in ctx.params.items()}
        return super().invoke(ctx)


class Field(NamedTuple):
    """A command parameter for a field of an operation's request. Fields that are None are not sent."""

    name: str
    declaration: Option | Argument
    kind: Any = str
    default: Any = None


class Verb(Command):
    """A command that is generated from an operation and sends a message to a run."""

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
        """Return the command's parameters without importing more code."""
        # They come from the operation's fields: loading `steer` for them would slow down help and completion.
        return click.Command.get_params(self, ctx)

    def invoke(self, ctx: click.Context) -> None:
        """Send the message to the run."""
        # Lazy import: the client and its models are only needed by a command that runs.
        from tightloop.cli.steer import send

        send(ctx, self.operation, **ctx.params)


class Group(click.Group):
    """A command group whose help lists the commands in panels."""

    def __init__(self, name: str, help: str, panel: str, *commands: click.Command) -> None:
        super().__init__(name, {str(command.name): command for command in commands}, help=help, no_args_is_help=True)
        self.panel = panel

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the commands grouped by panel, each with its complete help text."""
        panels: dict[str, list[tuple[str, str]]] = {}
        # Click would sort the commands by name and cut each help text to one line.
        for name, command in self.commands.items():
            panels.setdefault(getattr(command, "panel", "") or "Commands", []).append((name, command.help or ""))
        for panel, rows in panels.items():
            with formatter.section(panel):
                formatter.write_dl(rows)


_REASON = Field("reason", Option(help="Reason to record in the timeline."))
_RATIONALE = Field("text", Option("--rationale", help="Reason to record."))
_CHECKPOINT = Field(
    "checkpoint_id", Argument(metavar="CKPT", help="Checkpoint id or number, such as ckpt-2 or 2."), default=REQUIRED
)
_Verdict, _OnCrash = Literal["allow", "ask", "deny"], Literal["ask", "retry", "verify"]
_GATE = Field(
    "question",
    Argument(metavar="GATE", help="Gate step or review window. Optional if only one is waiting."),
)


def _amount(name: str, help: str, kind: Any = int) -> Field:
    return Field(name, Option(help=help), kind)


COMMANDS = (
    Command("start", "start:start", panel=START),
    Command("code", "start:code", "Start an episode with the built-in coder, which only needs a model.", START),
    Verb(
        "fork",
        _CHECKPOINT,
        Field("id", NEW_ID),
        panel=START,
    ),
    Command("list", "now:list_workflows", panel=LOOK),
    Command("status", "now:status", panel=LOOK),
    Command(
        "watch",
        "look:watch",
        "Exits with code 0 if the run succeeds without a qualifier, 4 if the run succeeds with a qualifier (for "
        "example, not proven), 1 if it does not succeed, and 3 if it waits for a person. Ctrl-C does not stop the run.",
        panel=LOOK,
    ),
    Command("timeline", "look:timeline", panel=LOOK),
    Command("checkpoints", "look:checkpoints", panel=LOOK),
    Command("diff", "look:diff", panel=LOOK),
    Command("output", "look:output", panel=LOOK),
    Command(
        "result",
        "export:result",
        "Show where a successful run's result is, or export it as files, a commit or a patch.",
        LOOK,
    ),
    Command("export", "export:export", "Prints JSON to stdout by default.", LOOK),
    Command("inbox", "now:inbox", panel=LOOK),
    Command("digest", "look:digest", panel=LOOK),
    Command("metrics", "look:metrics", panel=LOOK),
    Command(
        "proof",
        "proof:proof",
        "Exits with code 4 if the result is not proven, and 1 if the run did not succeed.",
        PROOF,
    ),
    Command("verify", "proof:verify", "Exits with code 0 if proven, 1 if not proven, and 2 on a usage error.", PROOF),
    Command("answer", "steer:answer", panel=ANSWER),
    Verb(
        "approve",
        _GATE,
        Field(
            "option",
            Option(help="Option to choose if the gate defines its own options. List them with: tightloop status ID"),
        ),
        Field("role", Option(help="Fail if the gate does not require this role.")),
        _RATIONALE,
        panel=ANSWER,
    ),
    Verb("reject", _GATE, _RATIONALE, panel=ANSWER),
    Verb("respond", Field("text", Argument(help="Message to send."), default=REQUIRED), panel=ANSWER),
    Verb("pause", _REASON),
    Verb(
        "resume",
        Field("note", Option(help="Message for the planner, recorded in the timeline.")),
        Field("checkpoint_id", Option("--checkpoint", help="Checkpoint to restore first (episodes only).")),
    ),
    Verb(
        "top_up",
        _amount("tokens", "Additional tokens."),
        _amount("cost_usd", "Additional cost in US dollars.", float),
        _amount("wall_minutes", "Additional minutes of work.", float),
        _amount("iterations", "Additional iterations (episodes only)."),
        _amount("executor_failures", "Additional executor failures to allow (episodes only)."),
        _amount("infrastructure_retries", "Additional retries after infrastructure failures (episodes only)."),
        _amount("attempts", "Additional step attempts (plans only)."),
        _amount("api_calls", "Additional calls to models and hosts (plans only)."),
        _amount("fan_out", "Additional steps per template (plans only)."),
        _amount("revisions", "Additional revisions (plans only)."),
    ),
    Verb(
        "amend",
        Field("goal", Option(help="New goal.")),
        Field("definition_of_done", Option("--done", help="New definition of done. Repeatable."), list[str]),
        Field("scenarios", Option(help="New hidden scenarios, or 'none' to withdraw all of them.", metavar="PATH")),
        Field("no_drafts", Option("--no-drafts", help="Withdraw the scenarios drafted by a model."), bool),
        Field("executor", Option(help="New executor. Options that it does not have are dropped.")),
        Field(
            "options",
            Option("--executor-option", help="Executor option as name=value, with a JSON value. Repeatable."),
            list[str],
        ),
        Field("fallback", Option(help="New fallback executor. Repeatable."), list[str]),
        Field("permissions", Option(help="How to answer the agent's permission requests."), _Verdict),
        Field(
            "on_crash",
            Option(help="What to do if the worker dies during a delivery."),
            _OnCrash,
        ),
        Field("planner", Option(help="New planner.")),
    ),
    Verb("restore", _CHECKPOINT, _REASON),
    Verb(
        "move",
        Field(
            "to",
            Option(help="Host to continue on, or its task queue. List them with: tightloop doctor"),
            default=REQUIRED,
        ),
        Field("workspace", Option(help="Absolute path of the workspace on that host. Default: unchanged.")),
        _REASON,
    ),
    Verb("cancel", _REASON),
    Command(
        "up", "host.commands:up", "Run the embedded Temporal server, a worker and the web page until Ctrl-C.", HOST
    ),
    Command(
        "gc",
        "host.commands:gc",
        "Remove the data of closed episodes and plans from this host, except recent ones. Workers can keep running.",
        HOST,
    ),
    Command("keep", "host.commands:keep", panel=HOST),
    Command(
        "open",
        "host.commands:open_page",
        "Open the web page in a browser and sign in. Prints the link, which works only once and expires after a "
        "minute.",
        HOST,
    ),
    Command(
        "gateway",
        "host.commands:gateway",
        "Run only the web page and the HTTP API, for use in a cluster. `tightloop up` already includes them.",
        HOST,
    ),
    Command("ui", "host.commands:ui", "Print a link that signs one browser in to the Temporal Web UI.", HOST),
    Command(
        "env",
        "host.commands:env",
        'Print the environment variables that connect the `temporal` command to this server: eval "$(tightloop env)".',
        HOST,
    ),
    Command(
        "replay",
        "host.commands:replay",
        "Replay one or more histories against the current code. Exits with code 1 if any of them does not match.",
        HOST,
    ),
    Command(
        "doctor",
        "host.commands:doctor",
        "Check this host and the Temporal server. Exits with code 1 if something required is missing.",
        HOST,
    ),
    Command(
        "setup",
        "host.commands:setup",
        "Set up the search attributes and retention of a Temporal namespace. Safe to repeat.",
        HOST,
    ),
    Command("settings", "host.commands:settings", "Show the effective settings with secrets masked.", HOST),
    Group(
        "worker",
        "Workers for your own Temporal server.",
        HOST,
        Command(
            "worker run",
            "host.commands:run",
            "Run a worker for an existing Temporal server, until Ctrl-C or SIGTERM.",
        ),
        Command(
            "worker install",
            "host.launch_agent:install",
            "Start a worker at each macOS sign-in, inside the desktop session, where it can access windows.",
        ),
        Command(
            "worker uninstall",
            "host.launch_agent:uninstall",
            "Stop the installed worker and keep it from starting at sign-in.",
        ),
    ),
    Group(
        "host",
        "Name of this host, used to route host-specific work to its workers.",
        HOST,
        Command(
            "host show",
            "host.commands:show_host",
            "Show the name of this host, and the names of other hosts whose work it continues.",
        ),
        Command(
            "host adopt",
            "host.commands:adopt_state",
            "Continue another host's open work after its state home has been moved to this host.",
        ),
    ),
    Group(
        "deploy",
        "Manage worker builds, to upgrade while episodes are running. Requires the worker.deployment setting.",
        HOST,
        Command(
            "deploy status", "host.commands:show_builds", "Show each build with its state, open runs and live workers."
        ),
        Command(
            "deploy promote",
            "host.commands:promote",
            "Start new workflows on this installation's build, provided that the build has live workers and can "
            "replay the histories.",
        ),
        Command(
            "deploy ramp",
            "host.commands:ramp",
            "Start only a share of new workflows on this installation's build, after the same checks as `deploy "
            "promote`.",
        ),
    ),
    Group(
        "plan",
        "Plans: steps with contracts, run as a graph. Example: tightloop plan run plan.yaml. "
        "The other commands (status, watch, answer, cancel, ...) also accept the id of a plan.",
        START,
        Command(
            "plan run",
            "plan:run",
            "Exits with code 0 if the run succeeds without a qualifier, 4 if the run succeeds with a qualifier (for "
            "example, not proven), 1 if it does not succeed, and 3 if it waits for a person. Ctrl-C does not stop the "
            "run.",
            panel=RUN,
        ),
        Verb(
            "replan",
            Field(
                "source",
                Argument(metavar="FILE", help="Full replacement plan. Default: a planner writes the plan."),
            ),
            Field("rationale", Option(help="Reason to record.")),
            panel=RUN,
        ),
        Verb(
            "run_step",
            Field(
                "step",
                Argument(metavar="STEP", help="Id of the step to run. The step must be ready or have failed."),
                default=REQUIRED,
            ),
            panel=RUN,
        ),
        Command("plan validate", "plan:validate", "Exits with code 1 if a plan cannot run.", TEXT),
        Command(
            "plan graph",
            "plan:graph",
            "Print a plan as a Mermaid flowchart, including step states once it has started.",
            TEXT,
        ),
        Command(
            "plan show",
            "plan:show_plan",
            "Accepts a plan file or the id of a plan. The output includes dependencies, budgets, rules and gates.",
            panel=TEXT,
        ),
    ),
    Group(
        "scenarios",
        "Hidden scenarios: checks that only the proof runs and no agent sees. "
        "Example: tightloop start ... --scenarios ~/hidden",
        PROOF,
        Command("scenarios new", "scenarios:new", "Write an example to a new folder."),
        Command(
            "scenarios pack", "scenarios:pack", "Encrypt scenarios and store them on this host, and print their digest."
        ),
        Command(
            "scenarios check",
            "scenarios:check",
            "Run scenarios on the files of a workspace and show their output. Exits with code 1 if any of them fails.",
        ),
        Command(
            "scenarios show",
            "scenarios:show_drafts",
            "Show the scenarios that a model drafted for an episode, with the expected and actual output.",
        ),
    ),
    Group(
        "loop",
        'Projects: inspect, plan, dispatch, verify. Example: tightloop loop plan "Add rate limits". '
        "The other commands (status, watch, list, pause, cancel, ...) also accept the id of a project plan.",
        START,
        Command("loop plan", "loop:plan"),
        Command("loop show", "loop:show_plan", "Show a plan's tasks and gates."),
        Verb(
            "dispatch",
            Field(
                "parallel",
                Option(
                    help="Maximum number of tasks to run at the same time. Default: the number set when the project "
                    "was planned."
                ),
                int,
            ),
            panel="",
        ),
        Command("loop verify", "loop:verify"),
    ),
    Group(
        "ledger",
        "The ledger, which contains the records of episodes and plans.",
        HOST,
        Command(
            "ledger rebuild",
            "host.commands:rebuild",
            "Restore the records of this host's projects from Temporal if ledger.db was lost. Workers can keep "
            "running.",
        ),
        Command(
            "ledger upgrade",
            "host.commands:upgrade",
            "Migrate the database at database.url (by default, this host's database) and its memory to the newest "
            "schema. Stop older workers first.",
        ),
    ),
    Group(
        "memory",
        "Project memory: failures, their solutions, and facts.",
        LOOK,
        Command(
            "memory search", "host.memory:search", "Find similar failures and their solutions, patterns, or facts."
        ),
        Command("memory list", "host.memory:list_entries", "List the entries, newest first."),
        Command("memory show", "host.memory:show_entry", "Show all details of one entry."),
        Command("memory forget", "host.memory:forget", "Permanently delete entries, or everything about a project."),
        Command(
            "memory export", "host.memory:export", "Export everything about a project as JSON, one entry per line."
        ),
        Command("memory stats", "host.memory:stats", "Show the number of entries and how often they helped."),
    ),
    Group(
        "hooks",
        "Cursor hooks, which report on plans delivered through the Cursor window.",
        HOST,
        Command(
            "hooks show",
            "host.commands:show_hooks",
            "Print the Cursor hooks file that `hooks install` would write, without changing anything.",
        ),
        Command(
            "hooks install",
            "host.commands:install_hooks",
            "Add tightloop's hooks to the Cursor hooks file. Other hooks are kept, and a backup is created.",
        ),
        Command("hooks remove", "host.commands:remove_hooks", "Remove tightloop's hooks from the Cursor hooks file."),
    ),
    Group(
        "token",
        "Bearer tokens for the HTTP API and the web page.",
        HOST,
        Command("token create", "host.commands:create_token", "Create a token and print it. It cannot be shown again."),
        Command("token list", "host.commands:list_tokens", "List all tokens. Their secrets are not shown."),
        Command(
            "token revoke",
            "host.commands:revoke_token",
            "Revoke a token and end its sessions. Open event streams can last for five more minutes.",
        ),
    ),
    Group(
        "mcp",
        "Tools for coding agents and assistants (Model Context Protocol).",
        HOST,
        Command("mcp serve", "mcp:serve", "Serve MCP on standard input and output, or on a Unix socket."),
        Command(
            "mcp install",
            "mcp:install",
            "Add the server and the rules for the agent to the configuration of Cursor, Claude Code or Codex.",
        ),
    ),
    Group(
        "keys",
        "Keys that encrypt and authenticate the data that Temporal stores.",
        HOST,
        Command("keys new", "host.commands:new_keys", "Create the key file with an initial key."),
        Command("keys list", "host.commands:list_keys", "List the key ids, starting with the current key."),
        Command(
            "keys rotate",
            "host.commands:rotate_keys",
            "Add a new current key. Old keys are kept so that data encrypted with them can still be read.",
        ),
    ),
)

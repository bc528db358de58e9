"""Settings of executors, coding agents and the sandbox."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from tightloop.settings.section import Count, HostRule, Pattern, Seconds, Section


class AgentSettings(Section):
    """How one coding agent is started and reaches its model, on the hosts with these settings."""

    program: str = ""
    """Name or absolute path; empty: the agent's usual name, looked up in PATH."""
    arguments: tuple[str, ...] = ()
    """Added to the command line."""
    model: str = ""
    """Name of the model, as the agent wants it; empty: the agent's own default."""
    base_url: str = ""
    """Of the model provider; empty: the agent's own default."""
    api_key_env: str = ""
    """Name of the variable of the worker that holds the key; empty: the agent's usual one."""
    login: bool = False
    """Use the agent's own login of the worker's user in place of a key: its login file is copied into the agent's
    home, where the agent's tools could read it."""
    gateway: bool = True
    """The agent talks to its provider through a loopback gateway and never has the key itself."""
    environment: tuple[str, ...] = ()
    """Names of more variables of the worker that the agent, and what it runs, may see."""


class AgentSSettings(Section):
    """Simular's Agent S, which looks for the chat box in a picture of the window where `chat_key` does not reach it.

    It only says where to click; whether the focus is in the chat box then is checked as always.
    """

    python: str = ""
    """Python of an environment that has the package `gui-agents`, as docs/macos.md sets it up. Empty: not used."""
    model: str = ""
    """Grounding model, such as UI-TARS, at a service that speaks OpenAI's Chat Completions."""
    base_url: str = ""
    """Of that service; empty: OpenAI's."""
    api_key_env: str = "OPENAI_API_KEY"
    """Name of the variable of the worker that holds the key; unset where the service needs none."""
    grid: tuple[Count, Count] | None = None
    """Width and height that the model's answers refer to; none: the pixels of the picture."""

    @model_validator(mode="after")
    def _has_a_model(self) -> Self:
        if self.python and not self.model:
            raise ValueError("needs model: name the grounding model that looks at the window")
        return self


class WindowSettings(Section):
    """The editor's window that the executor `cursor-gui` may touch, on the hosts with these settings."""

    driver: Literal["auto", "mac", "applescript", "x11"] = "auto"
    """Who moves the window. `auto`: `mac` where its libraries are installed, else `applescript`; `x11` on Linux."""
    apps: tuple[str, ...] = ("com.todesktop.230313mzl4w4u92", "Cursor")
    """Programs whose windows count: bundle ids on macOS, window classes on X11."""
    title: Pattern = r"^({project}( [-–—] Cursor)?|.+ [-–—] {project}( [-–—] [^-–—]+){0,2})( ⟦[^⟧]*⟧)?$"
    """Regular expression that the title has to contain; `{project}` stands for the name of the workspace's folder.
    Without a window that has both, nothing is touched. The default finds the project after the file, and before the
    profile and the program. Windows of remote folders never count."""
    allow_unknown_roots: bool = False
    """Hand over to an editor that does not say which folder its window has open, also one that runs no hook. Then only
    the title keeps a plan from another folder of the same name."""
    box: Pattern = r"^(chat input\b|composer input\b|add a follow-up|plan, )"
    """Regular expression for the accessible name of the chat box, in any case of letters."""
    chat_key: Annotated[str, Field(pattern=r"^[a-z0-9]+(\+[a-z0-9]+)*$")] = "mod+l"
    """Keys that bring the focus into the chat box; `mod` is Command on macOS, Control elsewhere."""
    agent_s: AgentSSettings = AgentSSettings()
    """Who finds the chat box in a picture where the keys do not reach it; a picture of the window leaves this host."""
    transcripts: str = "~/.cursor/projects"
    """Folder where the editor keeps the conversations of its agent."""


class ExecutorSettings(Section):
    """Default executor, and what executors may do."""

    default: str = Field(default="command", min_length=1)
    """Who does the work where a request names nobody: `command`, `person`, or an agent."""
    fallback: tuple[str, ...] = ()
    """Executors to use, in this order, where the chosen one is not installed or has no key."""
    agents: dict[str, AgentSettings] = Field(default_factory=dict)
    """By the name of the executor: `codex`, `claude`, `opencode`, `gemini` ..."""
    programs: tuple[str, ...] = (
        "ruff",
        "black",
        "isort",
        "autoflake",
        "pyupgrade",
        "prettier",
        "eslint",
        "stylelint",
        "gofmt",
        "goimports",
        "rustfmt",
        "clang-format",
        "shfmt",
    )
    """Programs that the `command` executor may run from the steps of a plan: formatters and linters.
    Interpreters, shells, package managers and test runners would let a plan run anything."""
    argv: tuple[str, ...] = ()
    """Template of a command that takes the whole plan, with `{plan_file}` and `{workspace}`. Empty: the steps
    are run."""
    wall_limit_s: Seconds = 3600.0
    """Longest time of one delivery."""
    idle_limit_s: Seconds = 900.0
    """Longest time without any output."""
    on_crash: Literal["ask", "retry", "verify"] = "retry"
    """What is done about a delivery that broke off, as with a worker that died, and whose outcome nothing tells.
    `retry`: deliver it again if no file changed and the executor has no effects outside the working tree, else
    `verify`: never deliver it again, let the checks look at what is there. `ask`: a person decides."""


class WorkspaceSettings(Section):
    """The working tree of an episode or a plan."""

    drift: Literal["ask", "undo"] = "ask"
    """What is done about files that somebody else changes outside a pause. `ask`: stop, and ask a person. `undo`: save
    and undo them; status and the end name the files and the command that brings them back."""


class SandboxSettings(Section):
    """Sandbox for the commands of plans and of definitions of done."""

    backend: Literal["auto", "docker", "bubblewrap", "sandbox-exec"] = "auto"
    """`auto`: docker where `image` is set, else bubblewrap (Linux) or sandbox-exec (macOS)."""
    unsafe_local: bool = False
    """Run commands without a sandbox where none works. Otherwise nothing is run there."""
    image: str = ""
    """Docker image with the tools of the project."""
    network: tuple[HostRule, ...] = ()
    """Hosts that commands and agents may reach, besides the model of an agent: `example.org`, `*.example.org` (those
    below it), `host:port` (that one, also where it is private or on this host), `*` (every public one). Empty: none."""
    cores: Annotated[float, Field(gt=0, le=256)] = 1.0
    """Processor cores of one command."""
    memory_mb: Annotated[int, Field(ge=64)] = 1024
    """Memory of one command, with everything that it starts."""
    processes: Annotated[int, Field(ge=8)] = 256
    """Processes and threads of one command at the same time."""
    disk_mb: Annotated[int, Field(ge=64)] = 8192
    """What one command, or one delivery to an agent, may add to the working tree and the other writable folders."""
    read: tuple[str, ...] = ()
    """More absolute paths that commands may read."""
    write: tuple[str, ...] = ()
    """More absolute paths that commands may change."""

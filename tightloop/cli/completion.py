"""Completion of words in a shell."""

import os
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from tightloop.errors import InvalidRequestError

VARIABLE = "_TIGHTLOOP_COMPLETE"
_FILES = {
    "bash": ".local/share/bash-completion/completions/tightloop",
    "zsh": ".zfunc/_tightloop",
    "fish": ".config/fish/completions/tightloop.fish",
}
_HINTS = {"zsh": "Add this to ~/.zshrc, if it is not there: fpath+=~/.zfunc; autoload -Uz compinit; compinit. "}


def script_of(command: click.Command, shell: str = "") -> str:
    """Return the script of a shell, by default of the user's.

    Raises:
        InvalidRequestError: there is none for it.
    """
    shell = shell or Path(os.environ.get("SHELL", "")).name
    kind = get_completion_class(shell)
    if kind is None:
        raise InvalidRequestError(f"no completion for the shell {shell!r}. Set SHELL to one of {', '.join(_FILES)}")
    return kind(command, {}, "tightloop", VARIABLE).source()


def install(command: click.Command) -> str:
    """Write the script where the user's shell looks for it, and say so."""
    shell = Path(os.environ.get("SHELL", "")).name
    text = script_of(command, shell)
    file = Path.home() / _FILES[shell]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return f"wrote {file}. {_HINTS.get(shell, '')}It counts in the next shell"

"""Project files that name commands: Makefiles, justfiles, package.json, pyproject.toml and the pre-commit config."""

import configparser
import json
import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from tightloop.checks.commands import Project
from tightloop.value.documents import load_yaml


def makefile_targets(project: Project, folder: str) -> dict[str, tuple[list[str], str]]:
    """Return the targets of a Makefile with their prerequisites and recipes."""
    text = next(filter(None, (project.text(name, folder) for name in ("GNUmakefile", "makefile", "Makefile"))), "")
    variables = dict(re.findall(r"^(\w+)\s*[:?]?=\s*(.*?)\s*$", text, re.MULTILINE))

    def expand(line: str) -> str:
        for _ in range(4):
            line = re.sub(r"\$[({](\w+)[)}]", lambda found: variables.get(found[1], ""), line)
        return line.replace("$$", "$")

    targets: dict[str, tuple[list[str], str]] = {}
    current: list[str] = []
    for line in re.sub(r"\\\n[ \t]*", " ", text).splitlines():
        if line.startswith("\t"):
            command = expand(line.strip()).lstrip("@+")
            # make ignores the exit status of a recipe line after `-`.
            for name in current if not command.startswith("-") else ():
                needs, recipe = targets[name]
                targets[name] = (needs, f"{recipe}{command}\n")
        elif match := re.match(r"([\w./ -]+?)\s*::?(?!=)\s*([^#=]*)(?:#.*)?$", line):
            current = [name for name in match[1].split() if not name.startswith(".")]
            needs = [need for need in expand(match[2]).split() if need != "|"]
            for name in current:
                old = targets.get(name, ([], ""))
                targets[name] = ([*old[0], *needs], old[1])
        elif line.strip() and not line.startswith((" ", "#")):
            current = []
    return targets


def just_recipes(project: Project, folder: str) -> dict[str, str]:
    """Return the recipes of a justfile."""
    text = next(filter(None, (project.text(name, folder) for name in ("justfile", "Justfile", ".justfile"))), "")
    recipes: dict[str, str] = {}
    current = ""
    for line in text.splitlines():
        if line[:1] in (" ", "\t"):
            command = line.strip().lstrip("@")
            if current and not command.startswith("-"):
                recipes[current] += f"{command}\n"
        elif match := re.match(r"@?([\w-]+)[^:=]*:(?!=)", line):
            current = match[1]
            recipes[current] = ""
        elif line.strip():
            current = ""
    return recipes


def package_scripts(project: Project, folder: str) -> dict[str, str]:
    """Return the scripts of a package.json."""
    try:
        document = json.loads(project.text("package.json", folder) or "{}")
    # The file belongs to the inspected project: deep nesting in it must not fail the activity.
    except (ValueError, RecursionError):
        return {}
    scripts = document.get("scripts") if isinstance(document, dict) else None
    entries = scripts.items() if isinstance(scripts, dict) else ()
    return {str(name): script for name, script in entries if isinstance(script, str)}


def project_scripts(project: Project, folder: str) -> dict[str, str]:
    """Return the scripts in pyproject.toml by name. Supports pdm, hatch, poe and taskipy."""
    tools = table_of(read_toml_text(project.text("pyproject.toml", folder)), "tool")
    scripts: dict[str, str] = {}
    tables = [table_of(tools, "pdm", "scripts"), table_of(tools, "poe", "tasks"), table_of(tools, "taskipy", "tasks")]
    environments = table_of(tools, "hatch", "envs")
    for name, environment in environments.items():
        table = table_of(environment if isinstance(environment, dict) else {}, "scripts")
        tables.append(table if name == "default" else {f"{name}:{key}": value for key, value in table.items()})
    for table in tables:
        for name, value in table.items():
            scripts.setdefault(str(name), _script_text(value))
    return {name: text for name, text in scripts.items() if text}


def _script_text(value: Any) -> str:
    if isinstance(value, dict):
        value = next((value[key] for key in ("cmd", "shell", "composite", "sequence", "call") if key in value), "")
    if isinstance(value, list):
        # hatch's scripts are lists of commands, and pdm's composite ones too.
        return "\n".join(part for part in value if isinstance(part, str))
    return value if isinstance(value, str) else ""


# -- pre-commit ---------------------------------------------------------------------------------------------------

_HOOKS = {
    "ruff": "ruff check",
    "ruff-check": "ruff check",
    "ruff-format": "ruff format --check",
    "black": "black --check",
    "isort": "isort --check",
    "flake8": "flake8",
    "mypy": "mypy",
    "codespell": "codespell",
    "pyright": "pyright",
    "pylint": "pylint",
    "eslint": "eslint",
    "prettier": "prettier --check",
    "bandit": "bandit -r",
}
"""Commands of common hooks by hook id, without the files to check."""
_REWRITING = ("--fix", "--write-changes", "--exit-non-zero-on-fix", "--show-fixes", "--in-place", "--write", "-w", "-i")


def pre_commit_commands(project: Project, hooks: list[str], folder: str) -> Iterator[str]:
    """Yield the commands of pre-commit hooks.

    Local hooks use their own command. Hooks for known programs are applied to all files.
    """
    repositories = read_yaml(project.text(".pre-commit-config.yaml", folder)).get("repos")
    for repository in repositories if isinstance(repositories, list) else ():
        entries = repository.get("hooks") if isinstance(repository, dict) else None
        for hook in entries if isinstance(entries, list) else ():
            if not isinstance(hook, dict) or (hooks and hook.get("id") not in hooks):
                continue
            given = hook.get("args")
            arguments = shlex.join(
                str(part) for part in (given if isinstance(given, list) else ()) if part not in _REWRITING
            )
            command, target = _HOOKS.get(str(hook.get("id")), ""), " ."
            if repository.get("repo") == "local":
                command = str(hook.get("entry", ""))
                if hook.get("pass_filenames", True):
                    # The files that it is given are unknown, but known programs accept a folder.
                    command = next((text for text in _HOOKS.values() if text.split()[0] in command.split()), "")
                else:
                    target = ""
            if command:
                yield " ".join(filter(None, (command, arguments))) + target


# -- reading ------------------------------------------------------------------------------------------------------


def read_toml_text(text: str) -> dict[str, Any]:
    """Parse TOML from an inspected project. Return an empty document for invalid text."""
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError):
        return {}


def read_yaml(text: str) -> dict[str, Any]:
    """Parse YAML from an inspected project. Return an empty document for invalid text."""
    try:
        # GitLab's own tags refer to other parts, which are then missing.
        document = load_yaml(re.sub(r"!(?:reference|include)\b", "", text))
    except (yaml.YAMLError, ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def read_ini(text: str) -> dict[str, dict[str, str]]:
    """Parse an INI file from an inspected project. Return no sections for invalid text."""
    parser = configparser.RawConfigParser(strict=False, allow_no_value=True, comment_prefixes=("#", ";"))
    try:
        parser.read_string(text)
    except configparser.Error:
        return {}
    return {name: {key: value or "" for key, value in parser.items(name)} for name in parser.sections()}


def table_of(document: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Return a nested mapping.

    Return an empty mapping if a key is missing or a value is not a mapping.
    """
    for name in names:
        inner = document.get(name)
        document = inner if isinstance(inner, dict) else {}
    return dict(document)

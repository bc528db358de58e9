"""The stable part of a role's prompt."""

import jinja2

from tightloop.coder.role import Role

_ENVIRONMENT = jinja2.Environment(
    # A misspelt name in a prompt must fail in a test, not vanish.
    undefined=jinja2.StrictUndefined,
    # Prompts are Markdown, not HTML.
    autoescape=False,  # noqa: S701
    trim_blocks=True,
    lstrip_blocks=True,
)


def system_prompt(role: Role) -> str:
    """Return what a role is told first; nothing in it changes within a session."""
    values = {"tools": role.tools, "max_turns": role.max_turns, "answer": role.answer}
    return _ENVIRONMENT.from_string(role.prompt).render(values).strip() + "\n"

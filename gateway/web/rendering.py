"""Fills templates; everything from outside is escaped."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from gateway.web import assets, words
from gateway.web.acting import is_confirmed
from gateway.web.code import Row
from gateway.web.look import Look, Screen
from tightloop.safety.person import Role

_DIRECTIONS = dict.fromkeys((*range(0x202A, 0x202F), *range(0x2066, 0x206A)), "\ufffd")


class Templates:
    """The templates with the words that all of them use."""

    def __init__(self, ui_url: str, namespace: str) -> None:
        """Read templates once; `ui_url` is Temporal's own Web UI, empty where there is none."""
        self._ui_url, self._namespace = ui_url.rstrip("/"), namespace
        self._environment = Environment(
            loader=FileSystemLoader(Path(__file__).parent / "templates"),
            autoescape=True,
            auto_reload=False,
            undefined=StrictUndefined,
            finalize=_shown,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.globals.update(
            asset=assets.address,
            badge_of=words.badge,
            age=words.age,
            duration=words.duration,
            money=words.money,
            moment=words.moment,
            title_of=words.title_of,
            path_of=path_of,
            is_confirmed=is_confirmed,
            ui_link_of=self._ui_link,
        )
        self._environment.filters["runs"] = _runs

    def page(self, screen: Screen, look: Look, said: str, *, seen: int | None = None, part: bool = False) -> bytes:
        """Return a page.

        Args:
            screen: what it shows.
            look: who looks.
            said: what came of the last action, in hex digits; it begins with `!` where it was refused.
            seen: the last event before it was read: its stream begins there. None: with what comes from now on.
            part: only its title and `main`, which are the same for all who have one role and see the same projects.
        """
        inbox = look.inbox
        sentence = _decoded(said)
        html = self._environment.get_template(screen.template).render(
            **screen.content,
            newest="" if seen is None else seen,
            part=part,
            section=screen.section,
            live=screen.live,
            person=look.person,
            name_of=look.name_of,
            waiting=len(inbox),
            asked=inbox[-1].question.title if inbox else "",
            may_act=look.may(Role.OPERATOR),
            may_add=look.may(Role.OPERATOR) and not look.person.projects,
            said=sentence.removeprefix("!"),
            refused=sentence.startswith("!"),
            ui_url=self._ui_url,
        )
        return html.encode()

    def _ui_link(self, workflow_id: str) -> str:
        return (
            f"{self._ui_url}/namespaces/{quote(self._namespace)}/workflows/{quote(workflow_id)}" if self._ui_url else ""
        )


def _shown(value: object) -> object:
    """Return a value as it is shown: text without characters that change the direction of what stands around them.

    Source: https://trojansource.codes, where such characters hide what a line of code does.
    """
    return value.translate(_DIRECTIONS) if isinstance(value, str) else value


def path_of(workflow_id: str) -> str:
    """Return the path of a workflow's page."""
    return f"/workflows/{quote(workflow_id, safe='')}"


def _runs(rows: Sequence[Row]) -> Iterator[list[Row]]:
    """Yield rows that follow each other and are all the same, or all changed."""
    for _, group in groupby(rows, key=lambda row: row.kind == "same"):
        yield list(group)


def _decoded(said: str) -> str:
    try:
        return bytes.fromhex(said).decode("utf-8", "replace")
    except ValueError:
        return ""

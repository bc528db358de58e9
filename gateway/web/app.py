"""The web application: static files, templates, live content and forms."""

import asyncio
import contextlib
import hashlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from http import HTTPStatus
from itertools import groupby
from pathlib import Path
from typing import cast
from urllib.parse import parse_qsl, quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from gateway.access.scope import Scope, Services
from gateway.access.site import RefusedError, body_of
from gateway.web import acting, pages
from gateway.web.acting import is_confirmed
from gateway.web.code import Row
from gateway.web.metrics import metrics
from gateway.web.pages import PageCache, Screen, SharedContent, View
from tightloop.errors import TightloopError
from tightloop.run.core import RunStatus
from tightloop.safety.seal import Role

PREFIX = "/assets/"
_FOLDER = Path(__file__).parent
_FILES = {
    "page.css": ("static/page.css", "text/css"),
    "page.js": ("static/page.js", "text/javascript"),
    "icon.svg": ("static/icon.svg", "image/svg+xml"),
    "htmx.min.js": ("vendor/htmx-4.0.1/htmx.min.js", "text/javascript"),
}


@cache
def content(name: str) -> bytes:
    """Return the content of a static file."""
    return (_FOLDER / _FILES[name][0]).read_bytes()


@cache
def address(name: str) -> str:
    """Return the URL path of a static file, which contains a digest of the file's content."""
    return f"{PREFIX}{hashlib.sha256(content(name)).hexdigest()[:16]}/{name}"


async def serve(request: Request) -> Response:
    """Serve a static file. Its path changes whenever its content does, so the file can be cached forever."""
    name = request.path_params["name"]
    if name not in _FILES or request.url.path != address(name):
        raise HTTPException(404)
    return Response(
        content(name), media_type=_FILES[name][1], headers={"Cache-Control": "public, max-age=31536000, immutable"}
    )


_DIRECTIONS = dict.fromkeys((*range(0x202A, 0x202F), *range(0x2066, 0x206A)), "\ufffd")


class Templates:
    """Templates with their global functions."""

    def __init__(self, ui_url: str, namespace: str) -> None:
        """Load the templates.

        `ui_url` is the address of Temporal's Web UI, or empty if there is none.
        """
        self._ui_url, self._namespace = ui_url.rstrip("/"), namespace
        self._environment = Environment(
            loader=FileSystemLoader(Path(__file__).parent / "templates"),
            autoescape=True,
            auto_reload=False,
            # A misspelt name must fail in a test, not render as nothing.
            undefined=StrictUndefined,
            finalize=_replace_directions,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.globals.update(
            asset=address,
            badge_of=pages.badge,
            age=pages.age,
            duration=pages.duration,
            money=pages.money,
            moment=pages.moment,
            title_of=pages.title_of,
            path_of=path_of,
            is_confirmed=is_confirmed,
            ui_link_of=self._ui_link,
        )
        self._environment.filters["runs"] = _runs

    def page(
        self, screen: Screen, view: View, flash: str, *, last_event: int | None = None, part: bool = False
    ) -> bytes:
        """Return a page as HTML.

        Args:
            screen: template and content.
            view: the current person's view.
            flash: flash message in hex. The decoded message starts with `!` if the action was refused.
            last_event: last event before the content was read. The live stream starts after this event. If
                None, it starts with new events.
            part: render only the title and `main`, which are the same for all people with the same role and
                projects.
        """
        inbox = view.inbox
        sentence = _decode_flash(flash)
        html = self._environment.get_template(screen.template).render(
            **screen.content,
            newest="" if last_event is None else last_event,
            part=part,
            section=screen.section,
            live=screen.live,
            person=view.person,
            name_of=view.name_of,
            waiting=len(inbox),
            asked=inbox[-1].question.title if inbox else "",
            may_act=view.may(Role.OPERATOR),
            may_add=view.may(Role.OPERATOR) and not view.person.projects,
            said=sentence.removeprefix("!"),
            refused=sentence.startswith("!"),
            ui_url=self._ui_url,
        )
        return html.encode()

    def _ui_link(self, workflow_id: str) -> str:
        return (
            f"{self._ui_url}/namespaces/{quote(self._namespace)}/workflows/{quote(workflow_id)}" if self._ui_url else ""
        )


def _replace_directions(value: object) -> object:
    """Replace the bidirectional control characters in a template value.

    These characters can make text look different from its actual content. See https://trojansource.codes.
    """
    return value.translate(_DIRECTIONS) if isinstance(value, str) else value


def path_of(workflow_id: str) -> str:
    """Return the URL path of a workflow's page."""
    return f"/workflows/{quote(workflow_id, safe='')}"


def _runs(rows: Sequence[Row]) -> Iterator[list[Row]]:
    """Yield groups of consecutive rows. In each group, either all rows are unchanged or all are changed."""
    for _, group in groupby(rows, key=lambda row: row.kind == "same"):
        yield list(group)


def _decode_flash(flash: str) -> str:
    try:
        return bytes.fromhex(flash).decode("utf-8", "replace")
    except ValueError:
        return ""


Page = Callable[[View, Request], Screen]
SEEN = "Tightloop-Seen"
"""Request header with the last event that an open page has received. The response then contains only the page's
content."""
CONFIRMED = "confirmed"
"""Form field that confirms an action."""
FORM_BYTES = 100_000
CURRENT_SECONDS = 0.5
"""Maximum time in seconds that a page waits for the run itself before it falls back to the ledger."""
FLASH = "tightloop_said"
FLASH_SECONDS = 20
FLASH_CHARACTERS = 600
PROBLEMS = (HTTPException, TightloopError, RefusedError)
PAGES: dict[str, Page] = {
    "/": pages.inbox,
    "/episodes": pages.episodes,
    "/plans": pages.plans,
    "/projects": pages.projects,
    "/projects/{id}": pages.project,
    "/metrics": metrics,
    "/workflows/{id}": pages.workflow,
}


def web_app(services: Services) -> Starlette:
    """Return the web page's application.

    The guard in front of it must have authenticated the request and set `request.state.person`.
    """
    ledger, temporal = services.ledger, services.settings.temporal
    templates = Templates(temporal.ui_url, temporal.namespace)
    sharing = PageCache(ledger)

    def look_of(request: Request) -> View:
        return View.of(Scope(request.state.person, services))

    def read(page: Page) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            view = look_of(request)
            request.state.current = await current(view, request) if page is pages.workflow else None
            if SEEN in request.headers:
                return HTMLResponse(await part(page, view, request))
            flash = request.cookies.get(FLASH, "")
            # Read before the page: later events arrive through its stream.
            last_event = await run_in_threadpool(ledger.last_event)
            content = await run_in_threadpool(
                lambda: templates.page(page(view, request), view, flash, last_event=last_event)
            )
            return _clear_flash(HTMLResponse(content), flash)

        return answer

    async def current(view: View, request: Request) -> RunStatus | None:
        """Query the status of an open run. Return None if the run does not answer promptly.

        The ledger only contains the state at the last event, which may be minutes old during a long check.
        """
        line = await run_in_threadpool(view.ledger.workflow, request.path_params["id"])
        if line.closed is not None:
            return None
        with contextlib.suppress(TightloopError, TimeoutError):
            async with asyncio.timeout(CURRENT_SECONDS):
                return await services.client.status(line.id)
        return None

    async def workers(request: Request) -> Response:
        # The workers are known to Temporal only.
        topology = await services.client.topology()
        return await read(lambda look, _: pages.workers(look, topology))(request)

    async def part(page: Page, view: View, request: Request) -> bytes:
        """Return the current content of an open page. The page requests this after an event."""
        last_event, projects = _number(request.headers[SEEN]), frozenset(view.person.projects)
        shared_content = await sharing.get(projects, last_event, lambda: _load_content(view.shared))
        # All pages of these people show the same inbox and names, so one read serves them all.
        shared = replace(view, shared=shared_content)
        # The person's name is not in the key, because this part of the page does not show it.
        key = (request.url.path, request.url.query, view.person.role, projects)
        return await sharing.get(key, last_event, lambda: templates.page(page(shared, request), shared, "", part=True))

    async def problem(request: Request, error: Exception) -> Response:
        status, detail = _problem(error)
        view = look_of(request)
        heading = "Not found" if status == HTTPStatus.NOT_FOUND else "Request failed"
        screen, flash = Screen("problem.html", {"heading": heading, "detail": detail}), request.cookies.get(FLASH, "")
        return _clear_flash(HTMLResponse(templates.page(screen, view, flash), status), flash)

    routes = [Route(path, read(page)) for path, page in PAGES.items()]
    routes.append(Route("/workers", workers))
    routes += [
        Route(path, _endpoint(action, services, templates), methods=["POST"]) for path, action in acting.ACTIONS.items()
    ]
    routes.append(Route(f"{PREFIX}{{digest}}/{{name}}", serve))
    return Starlette(routes=routes, exception_handlers=dict.fromkeys(PROBLEMS, problem))


def _endpoint(
    action: acting.Action, services: Services, templates: Templates
) -> Callable[[Request], Awaitable[Response]]:
    """Return the handler for a form.

    The handler first asks for confirmation. It runs the action when the form is sent with `confirmed`.
    """

    async def answer(request: Request) -> Response:
        form = dict(parse_qsl((await body_of(request, FORM_BYTES)).decode("utf-8", "replace")))
        scope = Scope(request.state.person, services)
        actor = acting.ActionContext(scope, request.path_params.get("id", ""), form)
        # Without a script every form comes here first: a stray Enter or click changes nothing.
        if form.get(CONFIRMED) != "yes":
            intent = await run_in_threadpool(action.describe, actor)
            content = {"intent": intent, "path": request.url.path, "back": _previous_page(request), "form": form}
            page = Screen("confirm.html", content)
            return HTMLResponse(await run_in_threadpool(templates.page, page, View.of(scope), ""))
        try:
            outcome = await action.run(actor)
        except TightloopError as error:
            # Redirected like a success, because reloading an error page would send the form again.
            outcome = acting.ActionResult(_previous_page(request), f"!{error.message}")
        response = RedirectResponse(outcome.path, HTTPStatus.SEE_OTHER)
        _set_flash(response, outcome.message)
        return response

    return answer


def _load_content(content: SharedContent) -> SharedContent:
    """Evaluate the cached properties of a page's content in the current thread."""
    _ = content.inbox, content.names
    return content


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else 0


def _clear_flash(response: Response, flash: str) -> Response:
    """Delete the cookie with the flash message that the page has shown."""
    if flash:
        response.delete_cookie(FLASH, path="/")
    return response


def _set_flash(response: Response, flash: str) -> None:
    """Store the flash message in a cookie.

    If the message were in the query, any link could make the page display arbitrary text.
    """
    # As hex, because a cookie value may hold few characters besides letters and digits.
    value = flash[:FLASH_CHARACTERS].encode("utf-8").hex()
    response.set_cookie(FLASH, value, max_age=FLASH_SECONDS, path="/", httponly=True, samesite="lax")


def _previous_page(request: Request) -> str:
    """Return the path of the page from which the form was sent."""
    if request.url.path.startswith("/projects"):
        return f"/projects/{request.path_params['id']}" if request.path_params else "/projects"
    return f"/workflows/{request.path_params['id']}"


def _problem(error: Exception) -> tuple[int, str]:
    if isinstance(error, HTTPException):
        unknown = error.status_code == HTTPStatus.NOT_FOUND
        return error.status_code, "There is no such page." if unknown else error.detail
    if isinstance(error, RefusedError):
        return error.status, error.message
    error = cast(TightloopError, error)
    return error.status, error.message

"""Identity of a host: its own name and the names of the hosts that it has adopted."""

import json
import re
import secrets
import socket
from typing import TYPE_CHECKING, Annotated

from pydantic import Field, ValidationError

from tightloop.errors import InvalidRequestError, SettingsError
from tightloop.host import open_state_home, state_home
from tightloop.host.access import write_private
from tightloop.value import Value, first_problem

if TYPE_CHECKING:
    from tightloop.settings import Settings

FILE = "host.json"
NAME_CHARACTERS = 40
ADOPTED_MOST = 8
"""Maximum number of adopted hosts. A worker polls one task queue for each of them."""
_NAME = r"^[a-z0-9-]{1,60}$"


class HostIdentity(Value):
    """The names of the hosts whose work this host executes."""

    name: Annotated[str, Field(pattern=_NAME)]
    adopted: Annotated[tuple[Annotated[str, Field(pattern=_NAME)], ...], Field(max_length=ADOPTED_MOST)] = ()
    """Hosts whose open work this host has taken over."""

    @property
    def names(self) -> tuple[str, ...]:
        """Name of this host, followed by the adopted names."""
        return (self.name, *self.adopted)

    def queues(self, settings: "Settings") -> tuple[str, ...]:
        """Return the task queues for the names of this host. The host's own queue comes first."""
        return tuple(queue_of(settings, name) for name in self.names)


def queue_of(settings: "Settings", name: str) -> str:
    """Return the task queue for a host, such as `tightloop-workspace-ada-1a2b3c`."""
    return f"{settings.temporal.task_queue}-workspace-{name}"


def read_identity(settings: "Settings | None" = None) -> HostIdentity | None:
    """Return the identity of this host, or None if no worker has ever run here.

    The setting `worker.host` overrides the name stored in the state home.

    Raises:
        SettingsError: the file in the state home cannot be read.
    """
    path, named = state_home() / FILE, settings.worker.host if settings else ""
    try:
        identity = HostIdentity.model_validate_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return HostIdentity(name=named) if named else None
    except (OSError, ValueError) as error:
        problem = first_problem(error) if isinstance(error, ValidationError) else error
        raise SettingsError(
            f"cannot read the identity of this host from {path}: {problem}. Restore the file from a backup, "
            'or write it again with the host name that `tightloop doctor` shows for open work: {"name": '
            '"NAME"}'
        ) from None
    if not named:
        return identity
    return HostIdentity(name=named, adopted=tuple(name for name in identity.adopted if name != named))


def host_identity(settings: "Settings | None" = None) -> HostIdentity:
    """Return the identity of this host, creating it if necessary.

    Raises:
        SettingsError: the identity can neither be read nor created.
    """
    if (identity := read_identity(settings)) is not None:
        return identity
    return _keep(HostIdentity(name=f"{machine_name()}-{secrets.token_hex(3)}"), replace=False)


def claim_identity(settings: "Settings") -> HostIdentity:
    """Return the identity of this host, and store the name from `worker.host`.

    Processes without this setting use the stored name.

    Raises:
        SettingsError: the identity cannot be read or written.
    """
    identity = host_identity(settings)
    return identity if identity == read_identity() else _keep(identity)


def adopt_host(settings: "Settings", name: str, *, release: bool = False) -> HostIdentity:
    """Take over another host's open work, or stop doing so. This function is idempotent.

    The change takes effect when a worker starts.

    Args:
        settings: current settings.
        name: name of the other host, or its task queue.
        release: True to end the adoption.

    Raises:
        InvalidRequestError: the name is invalid or belongs to this host, or `ADOPTED_MOST` is reached.
        SettingsError: the identity cannot be written.
    """
    identity, other_host = host_identity(settings), name.removeprefix(queue_of(settings, ""))
    if not re.fullmatch(_NAME, other_host):
        raise InvalidRequestError(f"{name!r} is not a valid host name. List the hosts: tightloop doctor")
    if other_host == identity.name:
        raise InvalidRequestError(f"{other_host!r} is this host. Its open work continues when a worker starts")
    adopted = tuple(host for host in identity.adopted if host != other_host)
    if not release and len(adopted) == ADOPTED_MOST:
        raise InvalidRequestError(
            f"this host has already adopted {ADOPTED_MOST} hosts, which is the maximum. Release one that has "
            f"no open work: tightloop host adopt {adopted[0]} --release"
        )
    return _keep(identity.evolve(adopted=adopted if release else (*adopted, other_host)))


def home_queue(settings: "Settings") -> str:
    """Return the task queue of this state home. Workers that share the state home share the queue."""
    return queue_of(settings, host_identity(settings).name)


def machine_name() -> str:
    """Return the machine's name, normalized for use in a task queue name.

    Only the first label is used, because the domain of a laptop changes with its network.
    """
    # Task queue names are case-sensitive, and machines report their names in varying case.
    label = socket.gethostname().lower().partition(".")[0]
    return re.sub(r"[^a-z0-9]+", "-", label)[:NAME_CHARACTERS].strip("-") or "localhost"


def _keep(identity: HostIdentity, *, replace: bool = True) -> HostIdentity:
    # Checks the folder first: others must not decide whose work this host executes.
    path = open_state_home() / FILE
    try:
        write_private(path, json.dumps(identity.model_dump(mode="json"), indent=1) + "\n", replace=replace)
    except FileExistsError:
        # Another process created the file first.
        return host_identity()
    except OSError as error:
        raise SettingsError(
            f"cannot write the identity of this host to {path}: {error.strerror or error}. Free some space, "
            "or choose another folder: export TIGHTLOOP_HOME=..."
        ) from None
    return identity


HEAD_SECONDS = 10.0
"""Timeout for a request head, measured from the connection or from the first byte after the previous request."""
BODY_SECONDS = 30.0
"""Timeout for a request body, measured from the end of its head."""

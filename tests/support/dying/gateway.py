"""A gateway that dies when it is asked to.

python -m tests.support.dying.gateway <settings> <folder of moments>
"""

import asyncio
import sys
from pathlib import Path

from temporalio.client import Client

from gateway.access.site import http_server, listening
from gateway.server import application
from tests.support.dying.deaths import Deaths
from tightloop.client import TightloopClient
from tightloop.database.ledger import open_ledger
from tightloop.settings import parse_settings
from worker.connect import connect


async def main(document: str, folder: str) -> None:
    """Answer until stopped."""
    settings = parse_settings(document, {})
    connected = await connect(settings)
    client = Client(**{**connected.config(), "interceptors": [Deaths(Path(folder))]})
    server = http_server(application(open_ledger(settings), TightloopClient(client, settings), settings))
    with listening(settings.gateway.listen, "gateway.listen") as listener:
        await server.serve(sockets=[listener])


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

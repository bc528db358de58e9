"""Answers requests with what the service behind it says."""

from collections.abc import Callable

from relay.message import Request, Response
from relay.pool import Pool
from relay.tally import Tally

Upstream = Callable[[str], str]


class Service:
    """Passes requests on."""

    def __init__(self, upstream: Upstream, pool: Pool, tally: Tally) -> None:
        """Take the service behind it; it raises `KeyError` for what it does not have, `TimeoutError` when it is slow."""
        self._upstream = upstream
        self._pool = pool
        self._tally = tally

    def handle(self, request: Request) -> Response:
        """Return the answer; it never raises."""
        response = self._answer(request)
        self._tally.add(response.status)
        return response

    def _answer(self, request: Request) -> Response:
        try:
            with self._pool.lease():
                return Response(200, self._upstream(request.path))
        except KeyError:
            return Response(404, "not found")
        except Exception as error:
            return Response(500, f"{type(error).__name__}: {error}")

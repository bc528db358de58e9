"""The scope of a request of the API."""

from typing import Annotated

from fastapi import Depends, Request

from gateway.access.scope import Scope


def scope_of(request: Request) -> Scope:
    """Return the scope of a request that the guard let through."""
    return Scope(request.state.person, request.app.state.services)


InScope = Annotated[Scope, Depends(scope_of)]

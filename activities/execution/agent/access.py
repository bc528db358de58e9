"""How an agent reaches its model: through the gateway with a token, by a key, or by its own login."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from activities.execution.agent.port import ModelAccess
from activities.model_gateway.port import Gateway, Gateways, GatewaySpec, Wire
from tightloop.errors import ExecutorError
from tightloop.executor import WorkOrder
from tightloop.settings import AgentSettings


@dataclass(frozen=True, kw_only=True)
class Access:
    """What an agent is told, and the door that it goes through."""

    model_access: ModelAccess
    gateway: Gateway | None = None
    """None: calls are neither seen nor bounded."""


def missing_key(settings: AgentSettings, *, name: str, default_key_env: str) -> str:
    """Return the sentence about a key that is not there; empty where none is needed.

    A service of one's own (`base_url`) may need none, unless the settings name the variable of its key.
    """
    variable = settings.api_key_env or default_key_env
    if settings.login or not variable or os.environ.get(variable):
        return ""
    if settings.base_url and not settings.api_key_env:
        return ""
    return (
        f"{name} has no key: the variable {variable} is not set where the worker runs. Set it, or set "
        f"executor.agents.{name}.login to true to use {name}'s own login"
    )


@contextmanager
def open_access(
    settings: AgentSettings,
    order: WorkOrder,
    *,
    wire: Wire | None,
    default_base_url: str,
    default_key_env: str,
    gateways: Gateways | None,
    name: str = "",
    own_bound: bool = False,
) -> Iterator[Access]:
    """Open the way to the model for one delivery; the gateway, where there is one, is shut on leaving.

    Args:
        settings: of the agent.
        order: names the model and the bound of model calls.
        wire: how the agent talks; None: its provider cannot be chosen, so there is no gateway.
        default_base_url: of its provider, where the settings name none.
        default_key_env: variable of the worker with its key, where the settings name none; empty: it needs none.
        gateways: None: there is no gateway on this worker.
        name: of the executor, for messages; empty: the one that the order names, for which another may stand in.
        own_bound: the caller sees to it that the bound of model calls is kept where there is no gateway.

    Raises:
        ExecutorError: there is no key, or the bound of model calls cannot be kept.
    """
    model = order.executor.model or settings.model
    name = name or order.executor.name
    if missing := missing_key(settings, name=name, default_key_env=default_key_env):
        raise ExecutorError(missing)
    key = "" if settings.login else os.environ.get(settings.api_key_env or default_key_env, "")
    upstream = settings.base_url or default_base_url
    keyed = bool(key or settings.base_url) and not settings.login
    if gateways is None or not settings.gateway or wire is None or not keyed:
        if order.executor.max_model_calls is not None and not own_bound:
            raise ExecutorError(
                f"max_model_calls is {order.executor.max_model_calls}, but only the model gateway can keep it and "
                f"{name} does not go through it here. Leave it out, or give a key and set "
                f"executor.agents.{name}.gateway to true"
            )
        base_url = upstream if keyed else settings.base_url
        yield Access(model_access=ModelAccess(base_url=base_url, key=key, model=model))
        return
    spec = GatewaySpec(wire=wire, upstream=upstream, key=key, max_calls=order.executor.max_model_calls)
    with gateways(spec) as gateway:
        access = ModelAccess(base_url=gateway.base_url, key=gateway.token, model=model)
        yield Access(model_access=access, gateway=gateway)

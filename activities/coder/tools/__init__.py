"""The tools of the coder, one in each module; to add one, add a module with `make`."""

import importlib
import pkgutil

from activities.coder.calls.equipment import Equipment
from activities.coder.port import Tool


def make_tools(equipment: Equipment) -> tuple[Tool, ...]:
    """Return a tool of each module in this folder, in the order of their names."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    return tuple(importlib.import_module(f"{__name__}.{name}").make(equipment) for name in names)

"""Finds the tools that there are."""

import importlib
import pkgutil

from activities.coder import tools
from activities.coder.calls.equipment import Equipment
from activities.coder.port import Tool


def make_tools(equipment: Equipment) -> tuple[Tool, ...]:
    """Return a tool of each module in the folder `tools`, in the order of their names."""
    names = sorted(module.name for module in pkgutil.iter_modules(tools.__path__))
    return tuple(importlib.import_module(f"{tools.__name__}.{name}").make(equipment) for name in names)

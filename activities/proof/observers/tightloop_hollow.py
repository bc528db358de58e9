"""Makes every function of the product return nothing, and runs only the new tests.

Those that still pass assert nothing.

Works with Python 3.8 and later.
"""

import ast
import importlib.machinery
import json
import os

PLACE = "TIGHTLOOP_HOLLOW"
"""Environment variable with the path of the instructions."""


class Nothing:
    """A value that is equal only to itself. Unlike None, it is never a valid return value."""


NOTHING = Nothing()


class _Hollow(ast.NodeTransformer):
    def __init__(self, is_none):
        self._is_none = is_none

    def visit_FunctionDef(self, node):
        # `__init__` must return None.
        value = "None" if self._is_none or node.name.startswith("__") else "__import__('tightloop_hollow').NOTHING"
        node.body = [ast.Return(ast.parse(value, mode="eval").body)]
        return node

    visit_AsyncFunctionDef = visit_FunctionDef


_instructions = None


def begin():
    """Install an import hook for the product's modules."""
    global _instructions
    try:
        with open(os.environ[PLACE], encoding="utf-8") as file:
            _instructions = json.load(file)
    except (KeyError, OSError, ValueError):
        return
    roots = {_instructions["root"], os.getcwd()}
    kept = {os.path.join(root, path) for root in roots for path in _instructions["kept"]}
    environments = tuple(f"{os.sep}{name}{os.sep}" for name in _instructions["environments"])
    get_code = importlib.machinery.SourceFileLoader.get_code

    def get_hollow_code(self, name):
        path = os.path.abspath(self.path)
        is_product = any(path.startswith(root + os.sep) for root in roots) and path not in kept
        if not is_product or any(part in path for part in environments):
            return get_code(self, name)
        tree = _Hollow(_instructions["none"]).visit(ast.parse(self.get_data(path)))
        return compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True)

    importlib.machinery.SourceFileLoader.get_code = get_hollow_code
    plugins = filter(None, (os.environ.get("PYTEST_PLUGINS"), __name__))
    os.environ["PYTEST_PLUGINS"] = ",".join(plugins)


def pytest_collection_modifyitems(items):
    """Deselect all tests except the new ones."""
    if _instructions is not None:
        names = set(_instructions["tests"])
        items[:] = [item for item in items if item.nodeid in names]

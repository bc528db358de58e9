"""Ten causes that a linter can fix, each as a broken module with its tests."""

from typing import NamedTuple


class Cause(NamedTuple):
    """One way in which a project is broken."""

    name: str
    module: str
    tests: str
    checks: tuple[str, ...]


PYTEST, RUFF, FORMAT = "python -m pytest -q", "ruff check .", "ruff format --check ."
PASSES = "import shop\n\n\ndef test_it_can_be_imported():\n    assert shop\n"

CAUSES = (
    Cause(
        "removed import",
        "from collections import Mapping\n\n\ndef kind(value):\n    return isinstance(value, Mapping)\n",
        "from shop import kind\n\n\ndef test_kind():\n    assert kind({})\n",
        (PYTEST,),
    ),
    Cause(
        "mutable default",
        'def total(x, sums={"n": 0}):\n    sums["n"] += x\n    return sums["n"]\n',
        "from shop import total\n\n\ndef test_total():\n    total(1)\n    assert total(2) == 2\n",
        (PYTEST,),
    ),
    Cause(
        "wrong exception",
        'class Todo:\n    def run(self):\n        raise NotImplemented("later")\n',
        "import pytest\n\nfrom shop import Todo\n\n\ndef test_todo():\n    with pytest.raises(NotImplementedError):\n"
        "        Todo().run()\n",
        (PYTEST,),
    ),
    Cause("unused import", "import os\nimport sys\n\n\ndef here():\n    return sys.argv\n", PASSES, (RUFF,)),
    Cause("unused variable", "def two():\n    unused = 1\n    return 2\n", PASSES, (RUFF,)),
    Cause("comparison with None", "def missing(value):\n    return value == None\n", PASSES, (RUFF,)),
    Cause("lambda with a name", "double = lambda x: 2 * x\n", PASSES, ("ruff check --select E731 .",)),
    Cause("layout", "def one( ):\n  return   1\n", PASSES, (FORMAT,)),
    Cause(
        "three rules at once",
        "import os\n\n\ndef f(value):\n    unused = 1\n    if value == None:\n        return f'none'\n"
        "    return value\n",
        PASSES,
        (RUFF,),
    ),
    Cause(
        "tests, rules and layout",
        "import os\nfrom collections import Mapping\n\n\ndef kind( value ):\n  extra = 1\n"
        "  return isinstance(value,Mapping)\n",
        "from shop import kind\n\n\ndef test_kind():\n    assert kind({})\n",
        (PYTEST, RUFF, FORMAT),
    ),
)

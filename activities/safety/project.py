"""Reads from the trees of a project what the rules about code need to know."""

import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib.metadata import packages_distributions

from tightloop.safety.change.tables import GENERATED, is_data
from tightloop.safety.code.dependencies import own_modules
from tightloop.safety.code.manifests import is_manifest, own_name, requirements_in
from tightloop.safety.code.model import CodeFile, ProjectFacts
from tightloop.safety.code.rules import CodeRules
from tightloop.safety.code.syntax import CODE_CHARACTERS

READ_LIMIT = 8_000_000
"""Bytes of the project's files in which imports are looked for; what else it imports has to stand in a manifest."""
_IMPORT = re.compile(rb"^[ \t]*(?:import|from)[ \t]+([A-Za-z_]\w*)", re.MULTILINE)
Content = Callable[[str], bytes]
"""Returns the bytes of a file by its blob id."""


def changed_files(before: Mapping[bytes, str], after: Mapping[bytes, str], content: Content) -> tuple[CodeFile, ...]:
    """Return the files that differ between two trees, each given as blob ids by path.

    Binary files have no text: their paths alone are judged. What tools generate is code as well: the model chooses the
    path. Only what nothing executes is left out.
    """
    paths = sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))
    return tuple(
        CodeFile(
            path.decode("utf-8", "backslashreplace"),
            _text(content(before[path])) if path in before else None,
            _text(content(after[path])) if path in after else "",
        )
        for path in paths
        if not is_data(path.decode("utf-8", "backslashreplace"))
    )


def project_facts(
    before: Mapping[bytes, str], after: Mapping[bytes, str], content: Content, rules: CodeRules
) -> ProjectFacts:
    """Return what is known of a project: what it depends on before the change, and its own modules after it."""
    paths = {path.decode("utf-8", "backslashreplace"): blob for path, blob in before.items()}
    now = [path.decode("utf-8", "backslashreplace") for path in after]
    manifests = [path for path in paths if is_manifest(path, rules.manifests) and not GENERATED.search(path)]
    names: set[str] = set()
    for path in manifests:
        text = _text(content(paths[path]))
        names.add(own_name(path, text))
        names.update(one.name for one in requirements_in(path, text, rules.manifests))
    return ProjectFacts(
        modules=own_modules([*paths, *now]),
        distributions=frozenset(names - {""}),
        imports=frozenset(_imports(paths, content)),
        installed=_installed(),
    )


def _imports(paths: Mapping[str, str], content: Content) -> Iterator[str]:
    read = 0
    for path, blob in paths.items():
        if path.endswith(".py") and not GENERATED.search(path) and read < READ_LIMIT:
            source = content(blob)
            read += len(source)
            yield from (name.decode() for name in _IMPORT.findall(source))


def _text(content: bytes) -> str:
    if b"\0" in content[:8_000]:
        return ""
    # One more than is read: so that it shows that there is more.
    return content[: 4 * CODE_CHARACTERS].decode("utf-8", "replace")[: CODE_CHARACTERS + 1]


@cache
def _installed() -> dict[str, tuple[str, ...]]:
    """Return the distributions of the worker's own environment: names are the same in that of the project."""
    return {module: tuple(names) for module, names in packages_distributions().items()}

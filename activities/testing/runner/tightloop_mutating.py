"""Applies mutants in memory, either to loaded functions or to modules when they are imported.

No files are written. A mutant replaces one piece of a file's text with another.
"""

import dis
import gc
import importlib.machinery
import os
import sys
import types


class Changing:
    """Applies mutants to the source files in a folder."""

    def __init__(self, root):
        self._root = root
        self._sources = {}
        self._functions = {}

    def executable(self, path):
        """Return the numbers of the lines in a file that contain code."""
        try:
            code = compile(self._source(path), path, "exec", dont_inherit=True)
        except (OSError, SyntaxError, ValueError):
            return []
        lines, waiting = set(), [code]
        while waiting:
            current = waiting.pop()
            lines.update(line for _, line in dis.findlinestarts(current) if line)
            waiting += _inner(current)
        return sorted(lines)

    def note_functions(self, paths):
        """Find the functions that were loaded from the given files. Call this once before forking child processes."""
        local_paths = {}
        # Not by module attributes: decorators, closures and tables hold functions that none of them names.
        for function in gc.get_objects():
            if type(function) is not types.FunctionType:
                continue
            name = function.__code__.co_filename
            if name not in local_paths:
                local_paths[name] = next((path for path in paths if self._is_file(name, path)), None)
            if local_paths[name] is not None:
                self._functions.setdefault(local_paths[name], {}).setdefault(function.__code__, []).append(function)

    def overlay(self, mutant):
        """Apply the mutant when its module is imported."""
        path = os.path.realpath(os.path.join(self._root, mutant["path"]))
        sys.meta_path.insert(0, _Finder(path, self._mutate_source(mutant)))

    def swap(self, mutant):
        """Apply the mutant to the functions of a loaded module. Return False if no function changes."""
        # Even for a loaded module: a test may reload it.
        self.overlay(mutant)
        if not any(
            self._is_file(str(getattr(module, "__file__", None) or ""), mutant["path"])
            for module in list(sys.modules.values())
        ):
            return True
        functions = self._functions.get(mutant["path"], {})
        filenames = {code.co_filename for code in functions}
        swapped = False
        for filename in filenames:
            old = compile(self._source(mutant["path"]), filename, "exec", dont_inherit=True)
            new = compile(self._mutate_source(mutant), filename, "exec", dont_inherit=True)
            for before, after in _pairs(old, new):
                for function in functions.get(before, ()):
                    try:
                        function.__code__ = after
                    except ValueError:
                        return False
                    swapped = True
        return swapped

    def _is_file(self, name, path):
        if os.path.basename(name) != os.path.basename(path):
            return False
        return os.path.realpath(name) == os.path.realpath(os.path.join(self._root, path))

    def _source(self, path):
        if path not in self._sources:
            with open(os.path.join(self._root, path), "rb") as file:
                self._sources[path] = file.read()
        return self._sources[path]

    def _mutate_source(self, mutant):
        source = self._source(mutant["path"])
        return source[: mutant["start"]] + mutant["text"].encode() + source[mutant["end"] :]


class _Finder:
    """Finds a module as usual, but replaces its code with a mutant."""

    def __init__(self, path, source):
        self._path, self._source = path, source

    def find_spec(self, name, path=None, target=None):
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is None:
                continue
            if spec.origin and os.path.realpath(spec.origin) == self._path:
                spec.loader = _Loader(name, spec.origin, self._source)
                spec.cached = None
            return spec
        return None


class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, name, path, source):
        super().__init__(name, path)
        self._mutated = source

    def get_code(self, fullname):
        return compile(self._mutated, self.path, "exec", dont_inherit=True)


def _inner(code):
    return [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]


def _pairs(old, new):
    """Return the pairs of old and new code objects that differ."""
    if old == new:
        return []
    pairs = [(old, new)]
    before, after = _inner(old), _inner(new)
    # A mutant changes one expression, so the functions within correspond by position.
    if len(before) == len(after):
        for first, other in zip(before, after):
            pairs += _pairs(first, other)
    return pairs

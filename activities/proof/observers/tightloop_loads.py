"""Reports the files of the tree that a Python process loads, runs and changes.

Works with Python 3.8 and later. The audit hook runs for every import and every opened file, so it returns immediately
if the file is not part of the tree. PYTEST_DONT_REWRITE: it is imported before pytest, which would warn about that.
"""

import atexit
import builtins
import os
import sys
import time

TREE = "TIGHTLOOP_TREE"
"""Environment variable with the root of the tree, and with the folder that contains its files where nothing can be
mounted.
"""
INSTALLED = ("/site-packages/", "/dist-packages/", "/.venv/", "/node_modules/")
_CACHE = "__pycache__"
_FRAMES = 200
_Module, _Function = type(sys), type(lambda: None)
_SHOWN = 20
_TOGETHER, _WAIT_S = 100, 0.02
_EVENTS = frozenset({"open", "subprocess.Popen", "os.exec", "os.posix_spawn", "os.system"})
_RUNNER_VARIABLES = ("PYTEST_", "TIGHTLOOP_", "TOX_", "NOX_")


class Loads:
    """Reports which files are loaded. A file is reported once for every file that loads it."""

    def __init__(self, teller):
        self._teller = teller
        self._roots = tuple(root.rstrip("/") + "/" for root in os.environ.get(TREE, "").split(os.pathsep) if root)
        self._edges = set()
        self._paths = {}
        self._waiting, self._told = [], 0.0
        self._names = {}
        self._is_busy = False
        self._exit = None
        self.started_tests = False

    def observe(self):
        """Start observing this process."""
        if not self._roots:
            return
        events, take = _EVENTS, self._take

        def hook(event, details):
            # Called for each `id()` as well, so the hook does nothing else.
            if event in events:
                take(event, details)

        sys.addaudithook(hook)
        self._watch_system_exit()
        self._watch_variables()
        # Functions registered first run last, when all modules are loaded.
        atexit.register(self._end)

    def path_in_tree(self, name):
        """Return the path of a file relative to the tree. Return "" for installed files and files elsewhere."""
        if isinstance(name, bytes):
            name = os.fsdecode(name)
        if not isinstance(name, str) or not name or name[0] == "<":
            return ""
        if name[0] != "/" or "/../" in name:
            name = os.path.abspath(name)
        for root in self._roots:
            if name.startswith(root):
                path = name[len(root) :]
                return "" if any(part in name[len(root) - 1 :] for part in INSTALLED) else path
        return ""

    def opener(self, frame):
        """Return the tree's file whose code is running in a frame or one of its callers, or ""."""
        for _ in range(_FRAMES):
            if frame is None:
                return ""
            name = frame.f_code.co_filename
            path = self._paths.get(name)
            if path is None:
                path = self._paths[name] = self.path_in_tree(name)
            if path:
                return path
            frame = frame.f_back
        return ""

    def _take(self, event, details):
        if self._is_busy:
            return
        self._is_busy = True
        try:
            if event == "open":
                path = self.path_in_tree(details[0])
                # Most opened files belong to Python or to packages.
                if path:
                    self._load(_source(path), sys._getframe(2))
            else:
                self._run(event, details, sys._getframe(2))
        except Exception:  # noqa: S110 - an observer must not change what it observes
            pass
        finally:
            self._is_busy = False

    def _load(self, path, frame):
        if not path or not os.path.isfile(self._roots[0] + path) and not os.path.isfile(self._roots[-1] + path):
            return
        by = self.opener(frame)
        if by != path:
            self._tell("load", by, path)

    def _tell(self, event, by, path):
        if (event, by, path) not in self._edges:
            self._edges.add((event, by, path))
            self._waiting.append((event, {"by": by, "file": path, "tested": self.started_tests}))
            # A large program loads thousands of files at once, a small one may be killed soon.
            if len(self._waiting) >= _TOGETHER or time.monotonic() > self._told + _WAIT_S:
                self.flush()

    def flush(self):
        """Report the files that were loaded since the last report."""
        if self._waiting:
            self._teller.tell_all(self._waiting)
            self._waiting, self._told = [], time.monotonic()

    def _run(self, event, details, frame):
        by = self.opener(frame)
        words = details[0] if event == "os.system" else details[1]
        words = [words] if isinstance(words, (str, bytes)) else list(words or ())
        cwd = details[2] if event == "subprocess.Popen" and details[2] else os.getcwd()
        for word in words:
            text = os.fsdecode(word) if isinstance(word, (str, bytes, os.PathLike)) else ""
            # The command of a shell holds several words.
            for part in text.replace(";", " ").replace("&", " ").split()[:_SHOWN]:
                path = self.path_in_tree(os.path.join(os.fspath(cwd), part))
                if path and os.path.isfile(os.path.join(os.fspath(cwd), part)):
                    self._tell("run", by, path)
        if event == "os.exec":
            self.flush()
            # Another program takes the place of this one, which therefore has no end of its own.
            self._teller.tell("end")
            if by and by != self._main_path():
                self._teller.tell("exit", file=self._roots[0] + by)

    def _main_path(self):
        main = sys.modules.get("__main__")
        return self.path_in_tree(getattr(main, "__file__", "") or "")

    # -- ends -----------------------------------------------------------------------------------------------

    def _watch_system_exit(self):
        """Record where the last SystemExit with status 0 was raised.

        A plain `raise SystemExit` does not call a function that could be wrapped. The class is therefore
        replaced with a subclass.
        """
        loads, plain = self, builtins.SystemExit

        class SystemExit(plain):
            def __init__(self, *values):
                plain.__init__(self, *values)
                was_busy, loads._is_busy = loads._is_busy, True
                try:
                    loads._exit = loads._early_exit(sys._getframe(1)) if not self.code else None
                except Exception:
                    loads._exit = None
                finally:
                    loads._is_busy = was_busy

        SystemExit.__module__, SystemExit.__qualname__ = "builtins", "SystemExit"
        builtins.SystemExit = SystemExit

    def _early_exit(self, frame):
        """Return the file that ended the tree's main program early, or None."""
        by, main = self.opener(frame), None
        while frame is not None:
            if frame.f_code.co_name == "<module>" and frame.f_globals.get("__name__") == "__main__":
                main = frame
            frame = frame.f_back
        if main is None:
            return None
        program = self.path_in_tree(main.f_code.co_filename)
        return by if by and program and by != program and not _is_at_its_end(main) else None

    def _end(self):
        if self._exit:
            self._teller.tell("exit", file=self._roots[0] + self._exit)
        try:
            self._tell_changed_modules()
            self._tell_shadows()
            self.flush()
        except Exception:  # noqa: S110 - as above
            pass

    # -- what the product does to its surroundings ------------------------------------------------------------

    def remember(self, module):
        """Record the names in a newly loaded module. Names that are added later are not replacements."""
        name = getattr(module, "__name__", None)
        if type(module) is _Module and name and not self.path_in_tree(vars(module).get("__file__")):
            self._names[name] = frozenset(vars(module))
            for value in list(vars(module).values()):
                if issubclass(type(value), type) and vars(value).get("__module__") == name:
                    self._names[name + "." + value.__qualname__] = frozenset(vars(value))

    def _tell_changed_modules(self):
        """Report functions outside the tree that were replaced with functions of the tree."""
        for name, module in list(sys.modules.items()):
            # Only plain modules and functions: attributes of other objects may be computed.
            if type(module) is not _Module or name == "__main__" or name.startswith("tightloop_"):
                continue
            members = dict(vars(module))
            if self.path_in_tree(members.get("__file__")):
                continue
            for attribute, value in members.items():
                self._tell_if_foreign(name, attribute, value)
                if issubclass(type(value), type) and vars(value).get("__module__") == name:
                    for member, inner in dict(vars(value)).items():
                        self._tell_if_foreign(name + "." + value.__qualname__, member, inner)

    def _tell_if_foreign(self, module, attribute, value):
        # Modules that are written in C, and those that were loaded before this one, get no further names in practice.
        if attribute not in self._names.get(module, (attribute,)):
            return
        if type(value) in (staticmethod, classmethod):
            value = value.__func__
        path = self.path_in_tree(value.__code__.co_filename) if type(value) is _Function else ""
        if path:
            self._teller.tell("patch", by=path, file=module + "." + attribute)

    def _tell_shadows(self):
        """Report modules of the tree that shadow installed modules."""
        from importlib.machinery import PathFinder

        # Tests add entries such as ".", which refer to folders of the tree.
        places = [os.path.abspath(entry) for entry in sys.path if isinstance(entry, str) and entry]
        elsewhere = [place for place in places if not (place + "/").startswith(self._roots)]
        elsewhere += [place for place in places if any(part in place + "/" for part in INSTALLED)]
        for name, module in list(sys.modules.items()):
            path = self.path_in_tree(getattr(module, "__file__", None) or "")
            if path and "." not in name and name != "__main__":
                spec = PathFinder.find_spec(name, elsewhere)
                if name in sys.builtin_module_names or (spec is not None and spec.origin):
                    self._tell("shadow", "", path)

    def _watch_variables(self):
        """Report product code that reads the environment variables of a test runner."""
        loads, plain = self, type(os.environ)

        class Environ(plain):
            def __getitem__(self, key):
                loads._look(key, sys._getframe(1))
                return plain.__getitem__(self, key)

            def __contains__(self, key):
                loads._look(key, sys._getframe(1))
                return plain.__contains__(self, key)

            def __iter__(self):
                path = loads.path_in_tree(sys._getframe(1).f_code.co_filename)
                for key in plain.__iter__(self):
                    if path:
                        loads._look(key, sys._getframe(1))
                    yield key

        Environ.__name__, Environ.__qualname__, Environ.__module__ = "_Environ", "_Environ", "os"
        os.environ.__class__ = Environ

    def _look(self, key, frame):
        if isinstance(key, str) and key.startswith(_RUNNER_VARIABLES):
            # `get` and `in` are methods of collections.abc, called by the file in question.
            for _ in range(3):
                path = self.path_in_tree(frame.f_code.co_filename)
                if path:
                    self._tell("look", path, key)
                frame = frame.f_back
                if path or frame is None:
                    return


def _source(path):
    """Return the source file of a bytecode file. Other paths are returned unchanged."""
    if _CACHE not in path:
        return path
    folder, _, name = path.rpartition("/")
    if not name.endswith(".pyc"):
        return ""
    return folder[: -len(_CACHE)] + name.split(".", 1)[0] + ".py"


def _is_at_its_end(frame):
    """Return whether a main program is executing its last statement and that statement is a call."""
    import ast

    with open(frame.f_code.co_filename, "rb") as file:
        body = ast.parse(file.read()).body
    while body:
        last = body[-1]
        if last.lineno > frame.f_lineno:
            return False
        if not isinstance(last, ast.If):
            break
        body = last.body
    call = last.value if isinstance(last, ast.Expr) else getattr(last, "exc", None)
    if not isinstance(call, ast.Call):
        return False
    inner = [node for argument in call.args for node in ast.walk(argument) if isinstance(node, ast.Call)]
    # `sys.exit(main())`, but not `expect_equal(add(2, 2), 4)`.
    return not inner or (len(call.args) == 1 and call.args[0] is inner[0] and len(inner) == 1)

"""Sets up pytest and hypothesis, with preloading, options and determinism."""

import importlib
import importlib.util
import os
import sys
import tempfile

LETTERS = "hypothesis.internal.charmap"
_OF_XDIST, _OF_COVERAGE = ["-n", "0"], ["--no-cov"]


def plugins():
    """Return the modules of the plugins that pytest loads automatically."""
    from importlib.metadata import entry_points

    points = entry_points()
    points = points.select(group="pytest11") if hasattr(points, "select") else points.get("pytest11", [])
    return [point.value.partition(":")[0] for point in points]


def warm(names):
    """Import libraries in advance, so that the import does not slow down every session."""
    for name in names:
        if name not in sys.modules or name == LETTERS:
            try:
                module = importlib.import_module(name)
                if name == LETTERS:
                    # hypothesis's table of all letters, which each run would build again: 1 s, and 14 s under line
                    # tracing.
                    module.charmap()
            except BaseException:  # it was loaded in another way before
                pass


def arguments(tests):
    has = importlib.util.find_spec
    return [
        "-q", "--continue-on-collection-errors", "--maxfail=0", "--tb=native",
        # For the modules preloaded by `warm`.
        "-W", "ignore::pytest.PytestAssertRewriteWarning", "-p", "no:randomly",
        "-o", "cache_dir=" + os.path.join(tempfile.gettempdir(), "tightloop-gate"),
        *(_OF_XDIST if has("xdist") else []),
        *(_OF_COVERAGE if has("pytest_cov") else []),
        *tests,
    ]  # fmt: skip


def calm_hypothesis(items):
    """Make hypothesis generate the same examples in every run. Disable its example database and deadline."""
    hypothesis = sys.modules.get("hypothesis")
    if hypothesis is None:
        return

    def calm(old):
        old = old or hypothesis.settings.default
        return hypothesis.settings(
            old, derandomize=True, database=None, deadline=None, max_examples=min(old.max_examples, 100),
            phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate], report_multiple_bugs=False,
            suppress_health_check=list(hypothesis.HealthCheck), print_blob=False,
        )  # fmt: skip

    name = "_hypothesis_internal_use_settings"
    for item in items:
        test = getattr(item, "obj", None)
        test = getattr(test, "__func__", test)
        if getattr(test, "is_hypothesis_test", False):
            setattr(test, name, calm(getattr(test, name, None)))
        machine = getattr(item, "cls", None)
        if isinstance(getattr(machine, "settings", None), hypothesis.settings):
            machine.settings = calm(machine.settings)

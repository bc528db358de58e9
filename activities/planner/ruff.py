"""Asks the project's own ruff which of its rules it can fix."""

from pathlib import Path
from threading import Lock

from activities.process import GRACE_S, Reason
from activities.sandbox.allowance import allowed
from activities.sandbox.port import MEBIBYTE, Sandbox, SandboxUnavailableError
from tightloop.episode.fixes.ruff import RuffRules, read_rules
from tightloop.errors import SettingsError
from tightloop.settings import SandboxSettings
from tightloop.value import shorten

TIMEOUT_S = 60.0
OUTPUT_BYTES = 16 * MEBIBYTE
"""The list of ruff 0.17 (973 rules with their explanations) is 1.6 MB."""


class ProjectRuff:
    """Runs ruff in the sandbox, because a project may bring a ruff of its own; asks each version once."""

    def __init__(self, sandbox: Sandbox, settings: SandboxSettings) -> None:
        self._sandbox = sandbox
        self._settings = settings
        self._known: dict[str, RuffRules] = {}
        self._lock = Lock()

    def rules(self, start: tuple[str, ...], root: Path) -> RuffRules:
        """Return the rules of the ruff that is started like this in `root`; blocking.

        A ruff that cannot be asked is not an error: the table is empty and names the problem.
        """
        try:
            version = self._output((*start, "--version"), root)
            # Held while asking: episodes that plan at the same time ask a version once.
            with self._lock:
                if version not in self._known:
                    listed = self._output((*start, "rule", "--all", "--output-format", "json"), root)
                    self._known[version] = read_rules(listed)
                return self._known[version]
        except (SandboxUnavailableError, SettingsError, OSError, ValueError) as error:
            return RuffRules(problem=shorten(str(error), 200))

    def _output(self, argv: tuple[str, ...], root: Path) -> str:
        spec = allowed(self._settings, argv, root, wall_limit_s=TIMEOUT_S, grace_s=GRACE_S, output_bytes=OUTPUT_BYTES)
        result = self._sandbox.run(spec, cancelled=lambda: False, started=lambda _pid: None)
        output = result.output.decode(errors="replace")
        if result.reason is not Reason.EXITED or result.exit_code != 0:
            why = result.message or output.strip() or f"exit code {result.exit_code}"
            raise OSError(f"'{' '.join(argv)}' failed: {why}")
        return output

"""Which tests pytest-xdist may spread over its processes."""

from xdist.scheduler.loadscope import LoadScopeScheduling

WHOLE = (
    "tests/e2e/",
    "tests/integration/sandbox/test_growth.py",
    "tests/integration/test_client_surface.py",
    "tests/trials/test_compose.py",
    "tests/trials/test_ui.py",
    "tests/trials/test_demo.py",
    "tests/trials/test_pages.py",
    "tests/trials/test_plan_encrypted.py",
    "tests/trials/test_privacy.py",
)
"""Files whose tests share an installation, a server or a disk of their own: each goes to one process."""


class WholeFiles(LoadScopeScheduling):
    """Gives each test to the next free process, and those of some files together; these begin first.

    `--dist loadgroup` would be the usual way: with pytest 9.2, pytest-xdist 3.8 ignores its marks.
    """

    def _split_scope(self, nodeid: str) -> str:
        return nodeid.split("::")[0] if nodeid.startswith(WHOLE) else nodeid

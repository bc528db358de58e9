"""Desktop drivers. Each one loads its libraries on first use."""

import importlib.util
import os
import sys
from contextlib import suppress
from datetime import timedelta

from activities.executor.gui.drivers.x11 import key_journals
from activities.executor.gui.port import Driver, DriverError, gui_folder
from activities.workspace.ownership import hold_lock
from tightloop.errors import WorkspaceLockedError
from tightloop.settings import WindowSettings


def choose_driver(settings: WindowSettings) -> Driver:
    """Return the driver named in the settings, or the best one for this host.

    Raises:
        DriverError: no driver supports both this platform and the features that the settings require.
    """
    name: str = settings.driver
    if name == "auto" and sys.platform == "darwin":
        name = "mac" if importlib.util.find_spec("ApplicationServices") else "applescript"
    elif name == "auto" and os.environ.get("DISPLAY"):
        name = "x11"
    if name == "mac":
        from activities.executor.gui.drivers.mac import MacDriver

        return MacDriver(takes_pictures=bool(settings.agent_s.python))
    if name == "applescript":
        if settings.agent_s.python:
            raise DriverError(
                "window.agent_s needs screenshots and clicks, but the applescript driver supports neither. Use the mac "
                "driver (pip install pyobjc-framework-ApplicationServices), or remove window.agent_s"
            )
        from activities.executor.gui.drivers.mac import AppleScriptDriver

        return AppleScriptDriver()
    if name == "x11":
        from activities.executor.gui.drivers.x11 import X11Driver

        return X11Driver()
    raise DriverError(f"no window driver for {sys.platform}. Use macOS, or Linux with an X11 display (DISPLAY)")


def release_keys(settings: WindowSettings) -> None:
    """Release keys that one of our processes left pressed when it died.

    Keys held by a hand-off that is still running are not affected.
    """
    if not any(key_journals()):
        return
    # Without waiting: whoever holds the lock is handing over, and releases its own keys.
    lock = hold_lock(gui_folder() / "screen.lock", wait=timedelta(0), what="the screen")
    with suppress(DriverError, WorkspaceLockedError), lock:
        driver = choose_driver(settings)
        try:
            driver.release_keys()
        finally:
            driver.close()

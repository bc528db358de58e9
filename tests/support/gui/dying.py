"""Hands one plan over and ends itself, as `kill -9` would, at one call: `FOLDER NAME NUMBER CALL before|after`."""

import os
import sys
from pathlib import Path

from activities.executor.gui.drivers.x11 import X11Driver
from tests.support.gui.handing import Interrupted, deliver, inline


def main() -> None:
    """Exit with 9 where it died, with 0 where there are no more calls."""
    folder, name, number, call, when = sys.argv[1:]
    driver = X11Driver()
    dying = Interrupted(driver, int(call), when, lambda: os._exit(9))
    result = deliver(dying, Path(folder), inline(name, int(number)))
    driver.close()
    print(result.end, result.reason)


if __name__ == "__main__":
    main()

"""Hands one plan over, as a worker does after its start, and says how that ended: `FOLDER NAME NUMBER ROOT`."""

import sys
from pathlib import Path

from activities.executor.gui.drivers import release_keys
from activities.executor.gui.drivers.x11 import X11Driver
from tests.support.gui.handing import deliver, inline
from tightloop.settings import WindowSettings


def main() -> None:
    folder, name, number, root = sys.argv[1:]
    release_keys(WindowSettings(driver="x11"))
    driver = X11Driver()
    result = deliver(driver, Path(folder), inline(name, int(number)), root=Path(root))
    driver.close()
    print(result.end, result.reason)


if __name__ == "__main__":
    main()

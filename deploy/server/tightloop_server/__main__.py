"""Runs a module of the server part: `python -m tightloop_server worker up`."""

import runpy
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_system"))
module = sys.argv.pop(1)
runpy.run_module(module, run_name="__main__", alter_sys=True)

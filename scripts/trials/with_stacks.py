"""`python with_stacks.py PROGRAM ...` or `python with_stacks.py -m MODULE ...`: runs it; SIGUSR1 makes it print the stacks of its threads."""

from __future__ import annotations

import faulthandler
import runpy
import signal
import sys

faulthandler.register(signal.SIGUSR1, all_threads=True)
if sys.argv[1] == "-m":
    del sys.argv[:2]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
else:
    del sys.argv[0]
    runpy.run_path(sys.argv[0], run_name="__main__")

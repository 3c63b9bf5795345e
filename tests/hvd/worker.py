"""One rank of a launch: calls functions of a module in turn and leaves their results in files."""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import pickle
import signal
import sys
import traceback


def main(module: str, functions: str, prefix: str) -> None:
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    work = importlib.import_module(module)
    for name in json.loads(functions):
        print(f"== {name}", flush=True)
        try:
            result = (True, getattr(work, name)())
        except Exception:
            result = (False, traceback.format_exc())
        with open(f"{prefix}.{name}.part", "wb") as file:
            pickle.dump(result, file)
        os.replace(f"{prefix}.{name}.part", f"{prefix}.{name}")
    work.leave()


if __name__ == "__main__":
    main(*sys.argv[1:])

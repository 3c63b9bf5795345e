"""Record digests: `python tests/golden/record.py` adds those of new cases and leaves all others as they are.

`--overwrite LABEL...` replaces those of the cases whose name begins with one of the labels, and `--overwrite all`
every one. Digests change only when the arithmetic of a method is meant to change. Cases that no longer exist are
dropped, and named.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # as in tests/conftest.py

from golden.measure import FILE, everything, measure, recorded, same


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--overwrite", nargs="+", metavar="LABEL", default=[], help="beginnings of names, or 'all'"
    )
    labels = parser.parse_args().overwrite
    old = recorded() if FILE.exists() else {}
    new = {}
    for case in everything():
        name = str(case)
        replaced = "all" in labels or any(name.startswith(label) for label in labels)
        if name in old and not replaced:
            new[name] = old[name]
            continue
        found = measure(case)
        # Numbers that differ by rounding alone stay as they are.
        unchanged = name in old and all(same(case, found[part], old[name].get(part)) for part in found)
        new[name] = old[name] if unchanged else found
        if not unchanged:
            print("changed" if name in old else "added", name)
    for name in old.keys() - new.keys():
        print("dropped", name)
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(new[name])}" for name in sorted(new))
    FILE.write_text(f"{{\n{lines}\n}}\n")
    print(f"{len(new)} cases in {FILE.name}")


if __name__ == "__main__":
    main()

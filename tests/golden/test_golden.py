"""Every method computes the bits it always did: results, state, bytes sent and payloads, against recorded digests.

A digest changes only when the arithmetic of a method is meant to change; say so in the change log, and record anew:

    python tests/golden/record.py --overwrite LABEL...

`adapter.py` holds everything that uses the library's API; it may be rewritten, `digests.json` then stays as it is.
"""

from __future__ import annotations

import pytest

from golden import adapter
from golden.cases import Case
from golden.measure import everything, measure, recorded, same

DIGESTS = recorded()


@pytest.mark.parametrize("case", everything(), ids=str)
def test_bits_are_as_recorded(case: Case) -> None:
    expected = DIGESTS[str(case)]
    found = measure(case)
    assert found.keys() == expected.keys()
    changed = [part for part in expected if not same(case, found[part], expected[part])]
    assert not changed, f"{case} differs in {', '.join(changed)}: " + "; ".join(
        f"{part} is {found[part]}, was {expected[part]}" for part in changed
    )


def test_every_recorded_case_runs() -> None:
    assert sorted(DIGESTS) == sorted(map(str, everything()))


def test_every_built_in_method_is_covered() -> None:
    assert set(adapter.method_names()) == {case.method for case in everything()}

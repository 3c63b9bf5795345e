"""How far predictions were off where they could be checked; `docs/planning.md` has the tables.

255 steps of `grace bench link`, none of which was used for fitting (benchmarks/plan-links.json).
"""

from __future__ import annotations

TYPICAL_ERROR = 0.09
"""Median relative error of predicted step times."""
LARGE_ERROR = 0.25
"""Relative error that nine of ten predictions stay within."""

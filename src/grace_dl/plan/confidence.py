"""How far predictions were off where they could be checked; `docs/planning.md` has the tables.

Provisional: 416 recorded steps of `grace bench link`, predicted with codecs and profiles that were measured on a busy machine.
"""

from __future__ import annotations

TYPICAL_ERROR = 0.15
"""Median relative error of predicted step times."""
LARGE_ERROR = 0.38
"""Relative error that nine of ten predictions stay within."""

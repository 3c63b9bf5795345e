"""Split a handle's saved state into what all ranks share and what is local to a rank."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .. import digest

LOCAL = ("e",)
"""Slots that differ between ranks: the residual. Factors are averages and the same on all ranks."""


def without_residuals(state: Mapping[str, Any], rank: int, size: int) -> dict[str, Any]:
    """Convert the state of another rank so that this one can load it."""
    parts = _selected(state["parts"], lambda part, label, name, slot: slot not in LOCAL)
    return digest.sealed({**state, "rank": rank, "world_size": size, "parts": parts, "carried": {}})


def with_residuals(state: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Combine `state` from another rank with the residuals of `own` where both are at the same step."""
    mine = _selected(
        own["parts"],
        lambda part, label, name, slot: slot in LOCAL and own["steps"].get(name) == state["steps"].get(name),
    )
    parts = {
        part: {
            label: {
                name: {**slots, **mine.get(part, {}).get(label, {}).get(name, {})}
                for name, slots in memory.items()
            }
            for label, memory in memories.items()
        }
        for part, memories in state["parts"].items()
    }
    return digest.sealed({**state, "rank": own["rank"], "parts": parts, "carried": own["carried"]})


def _selected(parts: Mapping[str, Any], wanted: Callable[[str, str, str, str], bool]) -> dict[str, Any]:
    return {
        part: {
            label: {
                name: {slot: value for slot, value in slots.items() if wanted(part, label, name, slot)}
                for name, slots in memory.items()
            }
            for label, memory in memories.items()
        }
        for part, memories in parts.items()
    }

"""Compression state that workers share, apart from what is each one's own."""

from __future__ import annotations

from typing import Any

LOCAL = ("e",)
"""Slots that differ between workers: the residual. Factors are averages, the same on all."""


def foreign(state: dict[str, Any], rank: int, size: int) -> dict[str, Any]:
    """The state of another worker as this one may take it over: without residuals."""
    memories = {
        label: {
            name: {slot: value for slot, value in slots.items() if slot not in LOCAL}
            for name, slots in memory.items()
        }
        for label, memory in state["memories"].items()
    }
    return {**state, "rank": rank, "world_size": size, "memories": memories, "carried": {}}


def with_residuals(state: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """`state` (shared parts of another worker) with the residuals of `own`, where both are at the same step."""
    memories = {}
    for label, memory in state["memories"].items():
        mine = own["memories"].get(label, {})
        memories[label] = {
            name: {
                **slots,
                **{
                    slot: value
                    for slot, value in mine.get(name, {}).items()
                    if slot in LOCAL and own["steps"].get(name) == state["steps"].get(name)
                },
            }
            for name, slots in memory.items()
        }
    return {**state, "memories": memories, "carried": own["carried"]}

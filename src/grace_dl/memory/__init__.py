"""Memories: own all state that persists between steps, by parameter name."""

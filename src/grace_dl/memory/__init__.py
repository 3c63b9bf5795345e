"""Memories: the owners of all state that lives between steps, by parameter name."""

"""Communicators: how the payloads of all ranks meet."""

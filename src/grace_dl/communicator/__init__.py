"""Communicators: how the payloads of all ranks are exchanged and combined."""

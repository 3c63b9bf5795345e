"""Interfaces of the systems whose users' scripts keep working here, each thin over `grace_dl` itself."""

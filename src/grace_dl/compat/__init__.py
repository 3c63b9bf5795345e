"""Interfaces of the systems whose users' scripts keep working here, each thin over `grace_dl` itself.

The original GRACE (`compressors`, `memories`, `communicators`, `params`; imported as `grace_dl.dist`, `grace_dl.torch` and
`grace_dl.tensorflow`), ACP-SGD (imported as `acpsgd`) and DGC (imported as `dgc`).
"""

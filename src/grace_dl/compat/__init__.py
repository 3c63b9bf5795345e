"""Compatibility with scripts written for other systems; each interface is a thin layer over `grace_dl`.

The original GRACE (`compressors`, `memories`, `communicators`, `params`; imported as `grace_dl.dist`, `grace_dl.torch` and
`grace_dl.tensorflow`), ACP-SGD (imported as `acpsgd`) and DGC (imported as `dgc`).
"""

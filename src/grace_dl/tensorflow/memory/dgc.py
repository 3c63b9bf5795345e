from ...compat.memories import DgcMemory as DgcMemory

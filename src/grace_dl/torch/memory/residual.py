from ...compat.memories import ResidualMemory as ResidualMemory

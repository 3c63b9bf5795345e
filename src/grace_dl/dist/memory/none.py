from ...compat.memories import NoneMemory as NoneMemory

from ...compat.memories import PowerSGDMemory as PowerSGDMemory

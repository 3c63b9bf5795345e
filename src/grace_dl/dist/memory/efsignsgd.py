from ...compat.memories import EFSignSGDMemory as EFSignSGDMemory

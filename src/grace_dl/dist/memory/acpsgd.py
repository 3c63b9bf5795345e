from ...memory.acpsgd import ACPSGDMemory as ACPSGDMemory

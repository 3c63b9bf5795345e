from ...methods.acpsgd import ACPSGDCompressor as ACPSGDCompressor

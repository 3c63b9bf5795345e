from ...compat.compressors import TensorFlowPowerSGDCompressor as PowerSGDCompressor

__all__ = ["PowerSGDCompressor"]

from ...compat.compressors import ThresholdCompressor as ThresholdCompressor

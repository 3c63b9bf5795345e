from ...compat.compressors import FP16Compressor as FP16Compressor

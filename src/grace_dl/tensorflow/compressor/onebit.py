from ...compat.compressors import OneBitCompressor as OneBitCompressor

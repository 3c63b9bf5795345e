from ...compat.compressors import SignSGDCompressor as SignSGDCompressor

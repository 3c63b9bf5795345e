from ...compat.compressors import SignumCompressor as SignumCompressor

from ...compat.compressors import NoneCompressor as NoneCompressor

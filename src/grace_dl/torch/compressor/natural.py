from ...compat.compressors import NaturalCompressor as NaturalCompressor

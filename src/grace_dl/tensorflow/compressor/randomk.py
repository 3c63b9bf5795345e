from ...compat.compressors import RandomKCompressor as RandomKCompressor

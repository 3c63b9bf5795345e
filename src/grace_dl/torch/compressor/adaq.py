from ...compat.compressors import AdaqCompressor as AdaqCompressor

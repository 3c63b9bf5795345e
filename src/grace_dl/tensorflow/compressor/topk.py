from ...compat.compressors import TopKCompressor as TopKCompressor

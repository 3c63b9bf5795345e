from ...compat.compressors import AdapSparseCompressor as AdapSparseCompressor

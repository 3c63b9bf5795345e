from ...compat.compressors import DgcCompressor as DgcCompressor

from ...compat.compressors import QSGDCompressor as QSGDCompressor

from ...compat.compressors import U8bitCompressor as U8bitCompressor

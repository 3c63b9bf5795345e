from ...compat.compressors import EFSignSGDCompressor as EFSignSGDCompressor

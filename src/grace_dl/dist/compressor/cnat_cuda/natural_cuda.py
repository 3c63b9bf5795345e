from ....compat.compressors import NaturalCompressor_CUDA as NaturalCompressor_CUDA

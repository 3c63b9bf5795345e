from ...compat.compressors import NaturalCompressor as NaturalCompressor
from ...compat.compressors import NaturalCompressor_CUDA as NaturalCompressor_CUDA

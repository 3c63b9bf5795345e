from ...compat.compressors import QSGDCompressor as QSGDCompressor
from ...compat.compressors import QSGDCompressor_CUDA as QSGDCompressor_CUDA

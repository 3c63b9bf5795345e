from ...compat.compressors import RandomKCompressor as RandomKCompressor
from ...compat.functions import drawn as sparsify

__all__ = ["RandomKCompressor", "sparsify"]

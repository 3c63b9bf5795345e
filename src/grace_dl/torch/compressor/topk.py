from ...compat.compressors import TopKCompressor as TopKCompressor
from ...compat.functions import desparsify as desparsify
from ...compat.functions import largest as sparsify

__all__ = ["TopKCompressor", "desparsify", "sparsify"]

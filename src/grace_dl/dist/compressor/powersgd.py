from ...compat.compressors import PowerSGDCompressor as PowerSGDCompressor
from ...compat.functions import orthogonalize as orthogonalize

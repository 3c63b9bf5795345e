from ...compat.compressors import TernGradCompressor as TernGradCompressor

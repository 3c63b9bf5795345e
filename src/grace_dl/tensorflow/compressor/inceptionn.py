from ...compat.compressors import INCEPTIONNCompressor as INCEPTIONNCompressor

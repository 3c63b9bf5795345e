from grace_dl.compat.dgc.compression import DGCCompressor as DGCCompressor

from grace_dl.compat.dgc.plain import Compression as Compression
from grace_dl.compat.dgc.plain import Compressor as Compressor
from grace_dl.compat.dgc.plain import FP16Compressor as FP16Compressor
from grace_dl.compat.dgc.plain import NoneCompressor as NoneCompressor

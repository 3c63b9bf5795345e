from ...methods.fp8 import FP8Compressor as FP8Compressor

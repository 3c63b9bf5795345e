from ...methods.int8 import Int8Compressor as Int8Compressor

from ...methods.int4 import Int4Compressor as Int4Compressor

from ...methods.bf16 import BF16Compressor as BF16Compressor

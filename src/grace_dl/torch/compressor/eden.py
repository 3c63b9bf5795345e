from ...methods.eden import EdenCompressor as EdenCompressor

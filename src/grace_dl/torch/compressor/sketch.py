from ...compat.compressors import SketchCompressor as SketchCompressor

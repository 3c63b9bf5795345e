"""The compressor interface and shared bases: pure functions from a tensor to a payload."""

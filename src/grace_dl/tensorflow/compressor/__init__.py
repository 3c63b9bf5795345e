"""The original GRACE's compressors for Horovod with TensorFlow, one module each."""

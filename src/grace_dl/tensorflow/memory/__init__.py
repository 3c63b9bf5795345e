"""The original GRACE's memories for Horovod with TensorFlow, one module each."""

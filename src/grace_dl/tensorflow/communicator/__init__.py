"""The original GRACE's communicators for Horovod with TensorFlow, one module each."""

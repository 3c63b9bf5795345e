"""Horovod with TensorFlow 2 and Keras: tapes, optimizers and the handle that both share."""

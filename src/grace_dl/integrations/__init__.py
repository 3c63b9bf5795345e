"""Adapters that attach a method to DDP models, optimizers, Horovod and TensorFlow."""

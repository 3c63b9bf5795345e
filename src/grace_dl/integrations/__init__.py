"""Where people train: adapters that attach a method to DDP, to optimizers, to Horovod and to TensorFlow."""

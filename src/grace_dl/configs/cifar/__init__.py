from grace_dl.train import Config, configs, later
from grace_dl.train.datasets import CIFAR
from grace_dl.train.schedule import CosineAnnealingLR

configs.dataset = Config(CIFAR, num_classes=10, image_size=32)

configs.train.num_epochs = 200
configs.train.batch_size = 128
configs.train.optimizer.lr = 0.1
configs.train.optimizer.weight_decay = 1e-4
configs.train.scheduler = Config(CosineAnnealingLR)
configs.train.scheduler.T_max = later(lambda: configs.train.num_epochs - configs.train.warmup_lr_epochs)

"""A small convolutional network, ten epochs: for studies with many runs on few cores."""

from grace_dl.train import Config, configs
from grace_dl.train.models import small_cnn

configs.model = Config(small_cnn, num_classes=configs.dataset.num_classes)

configs.train.num_epochs = 10
configs.train.batch_size = 64
configs.train.optimizer.lr = 0.05
configs.train.optimizer.weight_decay = 5e-4
configs.train.warmup_lr_epochs = 1
configs.train.schedule_lr_per_epoch = False
configs.train.channels_last = True

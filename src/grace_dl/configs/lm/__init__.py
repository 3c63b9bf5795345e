from grace_dl.train import Config, configs, later
from grace_dl.train.datasets import Characters
from grace_dl.train.schedule import CosineAnnealingLR

configs.dataset = Config(Characters, length=128, num_classes=128)

configs.train.num_epochs = 10
configs.train.batch_size = 32
configs.train.clip_grad_norm = 1.0
configs.train.metric = "loss/test"
configs.train.warmup_lr_epochs = 0.5
configs.train.scheduler = Config(CosineAnnealingLR)
configs.train.scheduler.T_max = later(lambda: configs.train.num_epochs - configs.train.warmup_lr_epochs)
configs.train.schedule_lr_per_epoch = False

from grace_dl.train import Config, configs, later
from grace_dl.train.folder import ImageFolder
from grace_dl.train.schedule import MultiStepLR

# root/train/<class>/*.jpg and root/val/<class>/*.jpg
configs.dataset = Config(ImageFolder, root="data/imagenet", num_classes=1000, image_size=224)
configs.data.num_threads_per_worker = 4

configs.train.num_epochs = 90
configs.train.batch_size = 32
configs.train.optimizer.lr = 0.0125
configs.train.optimizer.weight_decay = 5e-5
configs.train.scheduler = Config(MultiStepLR, gamma=0.1)
configs.train.scheduler.milestones = later(lambda: [e - configs.train.warmup_lr_epochs for e in (30, 60, 80)])

from grace_dl.train import Config, configs
from grace_dl.train.models import resnet20

configs.model = Config(resnet20, num_classes=configs.dataset.num_classes)

from grace_dl.train import Config, configs
from grace_dl.train.models import resnet110

configs.model = Config(resnet110, num_classes=configs.dataset.num_classes)

from grace_dl.train import Config, configs, later
from grace_dl.train.models import vgg16_bn

configs.model = Config(vgg16_bn, num_classes=later(lambda: configs.dataset.num_classes))

configs.train.optimizer.lr = 0.00125

from grace_dl.train import Config, configs
from grace_dl.train.models import vgg16

configs.model = Config(vgg16, num_classes=configs.dataset.num_classes)

# Without shortcuts, a network this wide needs a smaller rate and more decay.
configs.train.optimizer.lr = 0.05
configs.train.optimizer.weight_decay = 5e-4

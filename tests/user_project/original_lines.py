"""Import lines and calls of scripts written for the original systems, type-checked against the installed wheel."""

import acpsgd
from dgc.clip_grad import clip_grad_norm_
from dgc.compression import DGCCompressor
from dgc.horovod.compression import Compression
from dgc.horovod.optimizer import DistributedOptimizer
from dgc.memory import DGCSGDMemory
from dgc.optim.sgd import DGCSGD
from grace_dl.dist import Communicator, Compressor, Memory
from grace_dl.dist.communicator.allgather import Allgather
from grace_dl.dist.compressor.topk import TopKCompressor
from grace_dl.dist.helper import grace_from_params
from grace_dl.dist.memory.residual import ResidualMemory
from grace_dl.tensorflow.communicator.allgather import Allgather as TensorFlowAllgather
from grace_dl.tensorflow.compressor.topk import TopKCompressor as TensorFlowTopK
from grace_dl.tensorflow.helper import grace_from_params as tensorflow_from_params
from grace_dl.tensorflow.memory.residual import ResidualMemory as TensorFlowResidual
from grace_dl.torch.communicator.allgather import Allgather as TorchAllgather
from grace_dl.torch.compressor.topk import TopKCompressor as TorchTopK
from grace_dl.torch.helper import grace_from_params as torch_from_params
from grace_dl.torch.memory.residual import ResidualMemory as TorchResidual

grc = Allgather(TopKCompressor(0.3), ResidualMemory())
grc = TorchAllgather(TorchTopK(0.3), TorchResidual(), 2)
grc = TensorFlowAllgather(TensorFlowTopK(0.3), TensorFlowResidual(), 2)

params = {"compressor": "topk", "memory": "residual", "communicator": "allgather"}
for helper in (grace_from_params, torch_from_params, tensorflow_from_params):
    print(helper(params))

acpsgd.init()
print(Communicator, Compressor, Memory, clip_grad_norm_, Compression, DistributedOptimizer, DGCSGD)
print(DGCCompressor(0.001, memory=DGCSGDMemory(momentum=0.9)))

"""The original GRACE's names for `torch.distributed`: compressors, memories, communicators and `helper`."""

from ..compat.bases import Compressor as Compressor
from ..compat.bases import Memory as Memory
from ..compat.communicators import Communicator as Communicator

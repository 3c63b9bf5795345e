from ...compat.communicators import Allreduce as Allreduce

from ...compat.communicators import Allgather as Allgather

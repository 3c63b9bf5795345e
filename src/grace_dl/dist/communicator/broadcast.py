from ...compat.communicators import Broadcast as Broadcast

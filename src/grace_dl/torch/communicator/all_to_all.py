from ...compat.communicators import AllToAll as AllToAll

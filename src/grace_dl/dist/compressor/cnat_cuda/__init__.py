"""Natural compression on a GPU: the same class as on any device."""

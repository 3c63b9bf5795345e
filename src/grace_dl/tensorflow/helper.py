from ..compat.params import tensorflow_grace_from_params as grace_from_params

__all__ = ["grace_from_params"]

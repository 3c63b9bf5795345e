from ..compat.params import grace_from_params as grace_from_params

"""What can be wrong with a peer's payload, as numbers, so that faults found on a device are read together.

A check returns a `Fault`: 0, a number of `MESSAGES`, or a tensor on the payload's device that holds either.
"""

from __future__ import annotations

from torch import Tensor

Fault = int | Tensor

MESSAGES = (
    "",
    "padding bits are set",
    "coded indices hold another number of entries than announced",
    "indices do not increase within the tensor",
    "padding of the indices is wrong",
    "values behind the announced ones are not zero",
    "the signs do not mark the announced negative elements",
    "a bucket's mean is not finite",
    "the classes hold other numbers of elements than the tags say",
    "a value is not finite",
    # The compiled module knows those above by the same numbers.
    "a scale is negative, too large or not finite",
    "a code is out of range",
    "the largest exponent of a block is out of range",
    "more elements are announced than there is room for",
    "the mean of the negative elements is positive, that of the others negative, or one is not finite",
    "the decoded tensor is not finite",
)

(
    _,
    PADDING_BITS,
    INDEX_COUNT,
    INDEX_ORDER,
    INDEX_PADDING,
    STRAY_VALUES,
    SIGN_COUNT,
    MEAN_NOT_FINITE,
    CLASS_SIZES,
    VALUE_NOT_FINITE,
    SCALE,
    CODE,
    EXPONENT,
    COUNT,
    MEANS,
    RESULT_NOT_FINITE,
) = range(len(MESSAGES))


def worst(*faults: Fault) -> Fault:
    """One of several faults of a payload, if there is any; needs no copy from a device."""
    numbers = [fault for fault in faults if isinstance(fault, int)]
    tensors = [fault for fault in faults if isinstance(fault, Tensor)]
    most: Fault = max(numbers, default=0)
    for tensor in tensors:
        most = tensor.clamp(min=most) if isinstance(most, int) else tensor.maximum(most)
    return most

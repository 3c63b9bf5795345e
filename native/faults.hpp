// What can be wrong with a peer's payload. Decoders return a Fault and bindings pass its number to Python, where
// `grace_dl._native.FAULTS` holds the messages.
#pragma once

namespace grace {

enum class Fault : int {
    none,
    padding_bits,
    index_count,
    index_order,
    index_padding,
    stray_values,
    sign_count,
    mean_not_finite,
    class_sizes,
    value_not_finite,
    last = value_not_finite,
};

constexpr const char* fault_messages[] = {
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
};

constexpr int fault_count = int(Fault::last) + 1;
static_assert(sizeof fault_messages / sizeof *fault_messages == fault_count, "a message for every fault");

}  // namespace grace

// CPU builds of PyTorch cannot even slice a tensor that says `cuda`: they lack a guard for the device. This one does nothing.
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace c10::impl {
C10_REGISTER_GUARD_IMPL(CUDA, NoOpDeviceGuardImpl<DeviceType::CUDA>)
}

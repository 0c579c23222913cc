// What torch asks of a device: its number, its stream, and to wait for it.
#pragma once
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "tests/support/fake_device/device.h"
#include "tests/support/fake_device/open.h"

namespace shardwise::fake_device {

/// There is one stream, so an event orders nothing that the stream does not, and to wait for one is to wait
/// for all.
struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kDeviceType; }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  c10::Device getDevice() const override { return device(); }
  c10::Device exchangeDevice(c10::Device) const override { return device(); }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}

  c10::Stream getDefaultStream(c10::Device) const override {
    return c10::Stream(c10::Stream::DEFAULT, device());
  }
  c10::Stream getStream(c10::Device) const override { return getDefaultStream(device()); }
  c10::Stream exchangeStream(c10::Stream) const override { return getDefaultStream(device()); }
  void* getStreamNativeHandle(const c10::Stream) const override { return stream(); }

  void record(void**, const c10::Stream&, c10::DeviceIndex, c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return wait(); }
  bool queryStream(const c10::Stream&) const override { return wait(); }
  void synchronizeEvent(void*) const override { wait(); }
  void synchronizeStream(const c10::Stream&) const override { wait(); }
  void synchronizeDevice(c10::DeviceIndex) const override { wait(); }

 private:
  static bool wait() {
    const Open open;
    return true;
  }
};

}  // namespace shardwise::fake_device

"""Devices: what they are, what is known of them, which are here."""

from tvm_edge.devices.spec import DeviceSpec

__all__ = ["DeviceSpec"]

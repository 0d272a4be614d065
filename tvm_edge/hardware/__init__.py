"""Devices: what they are, what is known of them, which are here."""

from tvm_edge.hardware.devices import Device, devices
from tvm_edge.hardware.spec import DeviceSpec
from tvm_edge.hardware.targets import ResolvedTarget, resolve_target

__all__ = ["Device", "DeviceSpec", "ResolvedTarget", "devices", "resolve_target"]

"""From scheduled kernels to a device's language, where TVM's own lowering is wrong."""

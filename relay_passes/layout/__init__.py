"""Channel blocks (NCHW16c) and matrix panels."""

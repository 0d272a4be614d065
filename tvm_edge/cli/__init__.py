"""The command line ``tvm-edge``."""

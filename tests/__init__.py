"""What has to be said before NumPy is imported."""

import os

# OpenBLAS's threads spin while they wait for each other, and the test beside this one needs the
# core: on two cores a network of the zoo takes four times as long with two of them.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

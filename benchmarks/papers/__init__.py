"""What :mod:`benchmarks.paper_tables` is made of: the papers' figures, and what stands for them."""

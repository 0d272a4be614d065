"""Pages of results, written from ``results/sections`` and the lists of bars; nothing reads them."""

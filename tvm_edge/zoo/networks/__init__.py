"""One network family per module; each network is a function that adds it to a graph."""

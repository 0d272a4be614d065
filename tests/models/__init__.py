"""Small networks as the exporters of the field write them, to run and to damage."""

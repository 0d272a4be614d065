"""Graph passes on Relax, one per file; Relay, of which the name tells, is gone from TVM."""

"""A device for each operator, and copies between devices (ICPP'19 §3.1.2)."""

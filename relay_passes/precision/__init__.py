"""Float16 storage and arithmetic."""

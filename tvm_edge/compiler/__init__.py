"""From a model to code: one list of passes, and what it decides by."""

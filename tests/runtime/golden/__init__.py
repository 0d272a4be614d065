"""Artifacts as versions of tvm-edge wrote them; later versions load them, or refuse in words."""

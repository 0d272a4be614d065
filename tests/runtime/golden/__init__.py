"""Artifacts as versions of tvm-edge wrote them, for tests that later versions load or refuse them."""

"""Address ``host:port`` of a tracker or a server, or ``unix:/path`` of a server."""

from __future__ import annotations

from tvm_edge.errors import InputError

__all__ = ["Address", "parse_address", "written"]

Address = tuple[str, int]
"""Host and port; of a Unix socket its absolute path, and 0."""

_UNIX = "unix:"


def parse_address(text: str, name: str = "address") -> Address:
    """Return host and port of ``"host:port"``; an IPv6 address stands in brackets.

    Of ``"unix:/path"`` the path, and 0.

    Raises
    ------
    InputError
        Anything else.
    """
    if isinstance(text, str) and text.startswith(f"{_UNIX}/"):
        return text.removeprefix(_UNIX), 0
    host, colon, port = text.rpartition(":") if isinstance(text, str) else ("", "", "")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise InputError(
            f"{name} is {text!r}; write HOST:PORT, for example 127.0.0.1:9190",
            name=name,
            expected="HOST:PORT",
            got=str(text),
        )
    return host, int(port)


def written(address: Address) -> str:
    """Write an address as text; inverse of :func:`parse_address`."""
    host, port = address
    if host.startswith("/"):
        return f"{_UNIX}{host}"
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

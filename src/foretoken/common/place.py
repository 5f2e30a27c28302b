"""A place to listen at, taken before a model is loaded: whoever finds the port in use should not wait for that."""

from __future__ import annotations

import os
import socket
from typing import Any


def bound(host: str, port: int) -> socket.socket:
    """A TCP socket at an address, which nobody else can take meanwhile. It does not listen yet. port: 0 takes any that
    is free. Raises OSError if it is not to be had."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except UnicodeError as error:  # a name that cannot be one
        raise OSError(str(error)) from None
    try:
        return _bound(family, address, again=False)
    except OSError:
        if os.name != "posix":  # elsewhere two servers could share a port
            raise
        return _bound(family, address, again=True)  # connections of a server that has just ended may be left


def listen(place: socket.socket) -> None:
    """Let a bound socket listen. When it has ended, what is left of its connections does not keep the address from the
    next one: they have the option from the socket that listens. It is not set before, as others could bind the address
    then. Raises OSError."""
    if os.name == "posix":  # elsewhere the option lets others take the port
        place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    place.listen()


def _bound(family: socket.AddressFamily, address: Any, *, again: bool) -> socket.socket:
    """A socket at an address. again: also where connections of an earlier one are left. Two of these could be at one
    address until one of them listens, so it is not the first thing to try."""
    place = socket.socket(family)
    try:
        if again:
            place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            place.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        place.bind(address)
    except BaseException:
        place.close()
        raise
    return place

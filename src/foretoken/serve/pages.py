"""Which web pages may ask the server something: a browser asks for any page that its user has open."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from foretoken.errors import quoted
from foretoken.serve.errors import ServeError

_ELSEWHERE = (b"cross-site", b"same-site")  # of pages; a browser sends a form for them without asking first
_HERE = "localhost"


@dataclass(frozen=True)
class Pages:
    """origins: of pages elsewhere that may ask. names: those by which the server may be reached, beside addresses and
    localhost; None: any.

    A page may have the name of its host changed to this machine's address (DNS rebinding). Its requests then have the
    page's own origin, but they still name the host.
    """

    origins: Collection[str] = ()
    names: Collection[str] | None = None

    def refusal(self, method: str, given: Mapping[bytes, bytes]) -> ServeError | None:
        """Why a request may not ask; None if it may. given: its headers."""
        host = _name_in(given.get(b"host", b"").decode("latin-1"))
        if self.names is not None and not _is_here(host) and host not in self.names:
            said = f"the server answers to addresses and to localhost, not to {quoted(host)}"
            return ServeError(403, f"{said}; if that is a name of it, start it with --allow-host and the name")
        if method == "POST" and given.get(b"sec-fetch-site") in _ELSEWHERE:
            origin = given.get(b"origin", b"").decode("latin-1")
            if origin not in self.origins:
                said = quoted(origin)
                return ServeError(403, f"a web page of {said} may not ask here; --cors-origin names those that may")
        return None


def is_of_this_machine(host: str) -> bool:
    """Whether only this machine's own programs reach a server that listens there."""
    return _is_named_here(host) or (_is_address(host) and ipaddress.ip_address(host).is_loopback)


def _name_in(header: str) -> str:
    """The host in a header that may have a port, too."""
    host = header[: header.rindex("]") + 1] if header.startswith("[") and "]" in header else header.partition(":")[0]
    return host.strip("[]").rstrip(".").lower()


def _is_here(host: str) -> bool:
    """Whether no name server was asked for this host, so that nobody can have changed what it leads to. HTTP/1.0 names
    none."""
    return not host or _is_named_here(host) or _is_address(host)


def _is_named_here(host: str) -> bool:
    return host == _HERE or host.endswith(f".{_HERE}")


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True

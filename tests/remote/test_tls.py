"""Over TLS, with a certificate that the client is given."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from foretoken.api.remote import connect
from foretoken.errors import RemoteError, SettingError
from foretoken.remote.link import Address
from tests.remote.served import PROMPT, serving, truth


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make a certificate")
def test_a_text_over_tls_is_the_model_s_and_strangers_are_not_trusted(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    command = (
        "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost"
    )
    subprocess.run([*command.split(), "-keyout", key, "-out", certificate], check=True, capture_output=True)
    with serving(certificate=certificate, key=key) as host:
        url = host.url.replace("127.0.0.1", "localhost")
        assert url.startswith("wss://")
        with pytest.raises(RemoteError, match="cannot be reached"):
            connect(url)
        model = connect(url, ca=certificate)
        assert model.generate(PROMPT, max_new_tokens=8).tokens == truth(max_new_tokens=8).tokens


def test_a_host_that_does_not_encrypt_is_told() -> None:
    with serving() as host, pytest.raises(RemoteError, match=rf"if the host has no --tls, it is {host.url}"):
        connect(host.url.replace("ws://", "wss://"))


def test_what_would_not_be_encrypted_is_told(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="ca is for a host that encrypts"):
        Address("ws://127.0.0.1:1", ca=tmp_path)
    for url in ("ws://x", "ws://h:99999", "ws://:1", "ftp://h:1"):
        with pytest.raises(SettingError, match="expected ws://HOST:PORT or wss://HOST:PORT"):
            Address(url)
    assert "secret" not in repr(Address("ws://127.0.0.1:1", "secret"))
    assert not caplog.messages
    Address("ws://elsewhere.example:1", "secret")
    (told,) = caplog.messages
    assert "travel to ws://elsewhere.example:1 unencrypted" in told

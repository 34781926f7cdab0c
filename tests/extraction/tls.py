"""A certificate for localhost and 127.0.0.1, and the authority that signed it.

Made for these tests, good for nothing else: the authority's own key was thrown away. Both are valid
until 2126.
"""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

AUTHORITY = """\
-----BEGIN CERTIFICATE-----
MIIBqTCCAU+gAwIBAgIUQ9OlCQCFELjzddEfAHaRLpbWDe4wCgYIKoZIzj0EAwIw
ITEfMB0GA1UEAwwWaHNzdG9yZSB0ZXN0IGF1dGhvcml0eTAgFw0yNjExMjkyMDQ2
NDNaGA8yMTI2MTEwNTIwNDY0M1owITEfMB0GA1UEAwwWaHNzdG9yZSB0ZXN0IGF1
dGhvcml0eTBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABGu6uvZjAxnNoP6LnHL4
wnE7L0MuSIurhAU6gVexAF5gryy49Xe4CntUbIxvr/m2Qzu3aHsEZG+GM7VDo0P+
trajYzBhMA8GA1UdEwEB/wQFMAMBAf8wDgYDVR0PAQH/BAQDAgEGMB0GA1UdDgQW
BBQmwMCnVh8EUPCR50Iy0dTmWGtl0zAfBgNVHSMEGDAWgBQmwMCnVh8EUPCR50Iy
0dTmWGtl0zAKBggqhkjOPQQDAgNIADBFAiBdw6kFOqokkGL5NQ4snQy+FX1/MbHx
Uopf5JYDkBdPaAIhAMixyIMMtiHB2kyyfp2tMKGww0X0CjKF7Dczw/V8DS2D
-----END CERTIFICATE-----
"""

CERTIFICATE = """\
-----BEGIN CERTIFICATE-----
MIIBzDCCAXKgAwIBAgIUbdKuqbdFnUij0sleH28PS/0D30UwCgYIKoZIzj0EAwIw
ITEfMB0GA1UEAwwWaHNzdG9yZSB0ZXN0IGF1dGhvcml0eTAgFw0yNjExMjkyMDQ2
NDNaGA8yMTI2MTEwNTIwNDY0M1owFDESMBAGA1UEAwwJbG9jYWxob3N0MFkwEwYH
KoZIzj0CAQYIKoZIzj0DAQcDQgAE7+fiP211v6pK4YN88s7FeZowlitZ7tQIazef
tIiPu2uVxJeSN7cTvxHNoeiMlLp4fTB3vFotsq8bEKzuMMPi5aOBkjCBjzAMBgNV
HRMBAf8EAjAAMA4GA1UdDwEB/wQEAwIHgDATBgNVHSUEDDAKBggrBgEFBQcDATAa
BgNVHREEEzARgglsb2NhbGhvc3SHBH8AAAEwHQYDVR0OBBYEFKjnhvbQBCYhajY6
8LN2Li+M1R5AMB8GA1UdIwQYMBaAFCbAwKdWHwRQ8JHnQjLR1OZYa2XTMAoGCCqG
SM49BAMCA0gAMEUCIHttsiVWtaiB1BJTuIgbue8HssFJvEP+7xq4jTDdGcIYAiEA
3RNgj3uzRyCn61RSefEcxMNgqiz2CgwmD5F4DPmx+KY=
-----END CERTIFICATE-----
"""

KEY = """\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgawKdeUyXE5jGUcL1
9/ygFVQbrIvNOZ04Ht4vxVN0i5qhRANCAATv5+I/bXW/qkrhg3zyzsV5mjCWK1nu
1AhrN5+0iI+7a5XEl5I3txO/Ec2h6IyUunh9MHe8Wi2yrxsQrO4ww+Ll
-----END PRIVATE KEY-----
"""


def write_authority(directory: Path) -> Path:
    """Write what `--ca-cert` takes."""
    path = directory / "authority.pem"
    path.write_text(AUTHORITY)
    return path


def server_context(directory: Path) -> ssl.SSLContext:
    """Return what an https server needs."""
    path = directory / "server.pem"
    path.write_text(CERTIFICATE + KEY)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    return context

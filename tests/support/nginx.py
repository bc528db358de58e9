"""nginx in front of a plain Temporal server, as companies put it: client certificates, or an API key."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.stack.stack import wait_for_port
from worker.server import free_port

NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
"""It is in a folder that users' PATH lacks on Debian."""
_STOP_SECONDS = 10
_CONFIGURATION = """
daemon off; worker_processes 1; pid {folder}/pid; error_log {folder}/error.log;
events {{}}
http {{
  access_log off;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  upstream temporal {{ server {upstream}; keepalive 32; }}
  map $http_authorization $known {{ default 0; "Bearer {key}" 1; }}
  grpc_read_timeout 1h; grpc_send_timeout 1h; client_body_timeout 1h; client_max_body_size 0;
  keepalive_requests 1000000;
  server {{
    listen {address} ssl http2; ssl_certificate {certificate}; ssl_certificate_key {private};
    {access}
  }}
}}
"""
_BY_CERTIFICATE = "ssl_client_certificate {ca}; ssl_verify_client on; location / {{ grpc_pass grpc://temporal; }}"
# Temporal's own answer to a wrong key is a status of gRPC, not one of HTTP.
_BY_KEY = """
    error_page 401 = @refused;
    location / { if ($known = 0) { return 401; } grpc_pass grpc://temporal; }
    location @refused { default_type application/grpc; add_header grpc-status 16 always; return 200; }
"""


@contextmanager
def nginx_front(
    folder: Path, upstream: str, certificate: tuple[Path, Path], *, key: str = "", clients_of: Path | None = None
) -> Iterator[str]:
    """Serve a Temporal over TLS until left; yields `host:port`.

    Args:
        folder: for what nginx writes.
        upstream: the plain server.
        certificate: the server's, and its key.
        key: that clients must send.
        clients_of: in place of a key: the authority whose certificates clients must have.
    """
    assert NGINX is not None
    folder.mkdir()
    address = f"127.0.0.1:{free_port()}"
    access = _BY_KEY if clients_of is None else _BY_CERTIFICATE.format(ca=clients_of)
    values = {"folder": folder, "upstream": upstream, "key": key, "address": address, "access": access}
    text = _CONFIGURATION.format(**values, certificate=certificate[0], private=certificate[1])
    (folder / "nginx.conf").write_text(text)
    command = (NGINX, "-c", str(folder / "nginx.conf"), "-e", str(folder / "error.log"))
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        wait_for_port(address)
        yield address
    finally:
        process.terminate()
        process.wait(_STOP_SECONDS)

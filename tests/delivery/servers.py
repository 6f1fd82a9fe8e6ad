"""Real servers to upload to, each in a thread or a process that the test ends."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

USER, WORD = "studio", "s3cret"


@contextlib.contextmanager
def webdav(
    folder: Path, writable: bool = True, spoil: Callable[[bytes], bytes] | None = None
) -> Iterator[str]:
    """The address (webdav+http://…) of a WebDAV server for `folder`. `spoil` changes what is stored."""
    from cheroot import wsgi
    from wsgidav.wsgidav_app import WsgiDAVApp

    config = {
        "provider_mapping": {"/": {"root": str(folder), "readonly": not writable}},
        "simple_dc": {"user_mapping": {"*": {USER: {"password": WORD}}}},
        "verbose": 0,
        "logging": {"enable": False},
    }
    app: Any = WsgiDAVApp(config)
    server = wsgi.Server(("127.0.0.1", 0), _spoiled(app, spoil) if spoil else app)
    server.prepare()
    thread = threading.Thread(target=server.serve, daemon=True)
    thread.start()
    try:
        yield f"webdav+http://{USER}:{WORD}@127.0.0.1:{server.bind_addr[1]}"
    finally:
        server.stop()
        thread.join(10)


def _spoiled(app: Any, spoil: Callable[[bytes], bytes]) -> Any:
    import io

    def through(environ: dict, start: Any) -> Any:
        if environ["REQUEST_METHOD"] == "PUT":
            length = int(environ.get("CONTENT_LENGTH") or 0)
            data = spoil(environ["wsgi.input"].read(length) if length else environ["wsgi.input"].read())
            environ = {**environ, "wsgi.input": io.BytesIO(data), "CONTENT_LENGTH": str(len(data))}
            environ.pop("HTTP_TRANSFER_ENCODING", None)
        return app(environ, start)

    return through


@contextlib.contextmanager
def sftp(folder: Path) -> Iterator[str]:
    """The address (sftp://…) of an SFTP server whose root is `folder`."""
    import asyncssh

    class Server(asyncssh.SSHServer):
        def begin_auth(self, username: str) -> bool:
            return True

        def password_auth_supported(self) -> bool:
            return True

        def validate_password(self, username: str, password: str) -> bool:
            return (username, password) == (USER, WORD)

    def rooted(channel: Any) -> Any:
        return asyncssh.SFTPServer(channel, chroot=str(folder))

    ready, ended, found = threading.Event(), asyncio.Event(), {}

    async def serve() -> None:
        found["loop"] = asyncio.get_running_loop()
        key = asyncssh.generate_private_key("ssh-ed25519")
        listener = await asyncssh.listen(
            "127.0.0.1", 0, server_factory=Server, server_host_keys=[key], sftp_factory=rooted
        )
        found["port"] = listener.get_port()
        ready.set()
        await ended.wait()
        listener.close()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    assert ready.wait(20)
    try:
        yield f"sftp://{USER}:{WORD}@127.0.0.1:{found['port']}"
    finally:
        found["loop"].call_soon_threadsafe(ended.set)
        thread.join(10)

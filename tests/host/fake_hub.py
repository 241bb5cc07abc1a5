"""A model hub on this machine: what huggingface_hub asks for, and downloads that break off."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

REVISION = re.compile(r"/api/models/([^/]+/[^/]+)/revision/([^/?]+)")
TREE = re.compile(r"/api/models/([^/]+/[^/]+)/tree/([^/?]+)")
FILE = re.compile(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)")


@dataclass
class Hub:
    """One model. ``commits`` has its files by commit, ``branches`` a commit by name."""

    name: str
    commits: dict[str, dict[str, bytes]]
    branches: dict[str, str]
    break_after: int = 0  # bytes of a larger file before the line goes dead
    breaks: int = 0  # how often it does
    ranges: list[str] = field(default_factory=list)  # what was asked for in part
    served: list[str] = field(default_factory=list)  # files whose contents were asked for
    url: str = ""

    def commit(self, revision: str) -> str | None:
        commit = self.branches.get(revision, revision)
        return commit if commit in self.commits else None


def _handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *args: Any) -> None:
            pass

        def _json(self, code: int, data: Any, **headers: str) -> None:
            body = json.dumps(data).encode()
            self.send_response(code)
            for key, value in headers.items():
                self.send_header(key.replace("_", "-"), value)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def _missing(self, code: str) -> None:
            self._json(404, {"error": code}, X_Error_Code=code)

        def do_GET(self) -> None:
            for pattern, answer in ((REVISION, self._info), (TREE, self._tree), (FILE, self._file)):
                found = pattern.match(self.path)
                if found and found[1] != hub.name:
                    return self._missing("RepoNotFound")
                if found:
                    commit = hub.commit(found[2])
                    if commit is None:
                        return self._missing("RevisionNotFound")
                    return answer(commit, *found.groups()[2:])
            return self._missing("EntryNotFound")

        do_HEAD = do_GET

        def _info(self, commit: str) -> None:
            names = [{"rfilename": name} for name in hub.commits[commit]]
            self._json(200, {"id": hub.name, "sha": commit, "siblings": names, "private": False,
                             "gated": False, "tags": [], "downloads": 0})  # fmt: skip

        def _tree(self, commit: str) -> None:
            self._json(200, [{"type": "file", "path": name, "size": len(data),
                              "oid": hashlib.sha1(data).hexdigest()}
                             for name, data in hub.commits[commit].items()])  # fmt: skip

        def _file(self, commit: str, name: str) -> None:
            data = hub.commits[commit].get(name)
            if data is None:
                return self._missing("EntryNotFound")
            start, asked = 0, self.headers.get("Range")
            if asked and (found := re.fullmatch(r"bytes=(\d+)-", asked)):
                start = int(found[1])
                hub.ranges.append(asked)
            self.send_response(206 if start else 200)
            self.send_header("ETag", f'"{hashlib.sha256(data).hexdigest()}"')
            self.send_header("X-Repo-Commit", commit)
            self.send_header("Accept-Ranges", "bytes")
            self.send_header("Content-Length", str(len(data) - start))
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
            self.end_headers()
            if self.command == "HEAD":
                return None
            part = data[start:]
            if hub.breaks and len(part) > hub.break_after:
                part = part[: hub.break_after]
                self.close_connection = True
                hub.breaks -= 1
            hub.served.append(name)
            self.wfile.write(part)
            return None

    return Handler


@contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    """The hub on a free port of this machine."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(hub))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()

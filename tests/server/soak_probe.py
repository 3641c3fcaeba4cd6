"""Asks for /health again and again, from a process of its own, and writes how long each answer took.

Run as ``python -m tests.server.soak_probe URL`` until its standard input is closed; seconds come on stdout, as JSON.
"""

from __future__ import annotations

import http.client
import json
import sys
import threading
import time
from urllib.parse import urlsplit

EVERY_S = 0.05


def main(url: str) -> None:
    """Probe until stdin ends."""
    over = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=60)
    seconds: list[float] = []
    while not over.wait(EVERY_S):
        begin = time.perf_counter()
        connection.request("GET", "/health")
        reply = connection.getresponse()
        reply.read()
        assert reply.status == 200, reply.status
        seconds.append(time.perf_counter() - begin)
    print(json.dumps(seconds))


if __name__ == "__main__":
    main(sys.argv[1])

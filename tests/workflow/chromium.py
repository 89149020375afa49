"""A headless Chromium, told what to do over a pipe: no driver and no package is needed."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import signal
import subprocess
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
PATIENCE_S = 120.0
"""How long a busy machine may take to answer."""
OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--host-resolver-rules=MAP * ~NOTFOUND",  # offline
    "--remote-debugging-pipe",
)


def browser_or_skip(what: str) -> str:
    """Return the path of a browser, or skip loudly: `what` was not looked at."""
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        reason = f"NO BROWSER: {what} was not looked at; install chromium"
        warnings.warn(reason, stacklevel=2)
        pytest.skip(reason)
    return found


class Tab:
    """One page, and all that it asked for and complained about since it was opened."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to, self._from = to_browser, from_browser
        self._rest, self._number, self._session = b"", 0, ""
        self.width = 0
        """Pixels of the window; a phone's own `innerWidth` grows with a page that is too wide."""
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and return its result; events that come before it are kept."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return dict(answer["result"])
            self.events.append(answer)

    def _next(self) -> dict[str, Any]:
        end_s = time.monotonic() + PATIENCE_S
        while b"\0" not in self._rest:
            left_s = end_s - time.monotonic()
            if not select.select([self._from], [], [], max(left_s, 0))[0]:
                pytest.fail("the browser is silent")
            data = os.read(self._from, 1 << 20)
            if not data:
                pytest.fail("the browser is gone")
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\0")
        return dict(json.loads(line))

    def open(self, url: str, width: int, *, is_phone: bool) -> None:
        """Load a page at a width in pixels, and wait until all of it is there."""
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": is_phone}
        self.width = width
        self.call("Emulation.setDeviceMetricsOverride", **size)
        self.events.clear()
        self.call("Page.navigate", url=url)
        while not self._happened("Page.loadEventFired"):
            self.events.append(self._next())

    def _happened(self, method: str) -> bool:
        return any(event.get("method") == method for event in self.events)

    def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression, which the page's own policy does not see."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def requests(self) -> list[str]:
        """Return every address that was asked for."""
        sent = (e for e in self.events if e.get("method") == "Network.requestWillBeSent")
        return [event["params"]["request"]["url"] for event in sent]

    def complaints(self) -> list[Any]:
        """Return what the console holds, and exceptions."""
        kinds = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")
        return [event["params"] for event in self.events if event.get("method") in kinds]

    def screenshot(self, path: Path, *, is_whole: bool = False) -> None:
        """Save what is seen, or the whole page, as PNG."""
        taken = self.call("Page.captureScreenshot", captureBeyondViewport=is_whole)
        path.write_bytes(base64.b64decode(taken["data"]))


@contextmanager
def tab(browser: str, profile: Path) -> Iterator[Tab]:
    """Run a browser with a profile folder of its own, and give a page of it."""
    their_in, our_out = os.pipe()
    our_in, their_out = os.pipe()
    # Chromium reads its orders from descriptor 3 and answers on descriptor 4.
    script = f'exec "$@" 3<&{their_in} 4>&{their_out}'
    process = subprocess.Popen(
        ["bash", "-c", script, "bash", browser, *OPTIONS, f"--user-data-dir={profile}"],
        pass_fds=(their_in, their_out),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    os.close(their_in)
    os.close(their_out)
    try:
        yield Tab(our_out, our_in)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        os.close(our_out)
        os.close(our_in)

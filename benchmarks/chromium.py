"""A page in headless Chromium, driven through the pipe that its DevTools protocol has: no driver, no socket.

Knows: the protocol, as far as opening a page, running a script in it and taking a picture need it.
Must not know: what is in a page.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from time import monotonic
from typing import Any, NamedTuple

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--no-default-browser-check",
    "--hide-scrollbars",
    "--disable-lcd-text",
    "--remote-debugging-pipe",
)

TIMEOUT_S = 60.0
"""How long an answer may take: a machine may have more to do than this."""


class ChromiumError(Exception):
    """The browser did not answer, or answered with an error."""


class Clip(NamedTuple):
    """A part of a page in CSS pixels."""

    x: float
    y: float
    width: float
    height: float


def executable() -> str | None:
    """Return where Chromium is, if it is installed."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Page:
    """A tab. `complaints` is what it wrote to the console, `requests` every address that it asked for."""

    def __init__(self, command: int, answers: int) -> None:
        self._command = command
        self._answers = answers
        self._buffer = b""
        self._number = 0
        self._session = ""
        self._loaded = False
        self.complaints: list[str] = []
        self.requests: list[str] = []

    def begin(self, width: int, height: int, *, scripts: bool = True) -> None:
        """Make the tab."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        self.call("Emulation.setScriptExecutionDisabled", value=not scripts)

    def open(self, url: str) -> None:
        """Go to an address and wait until everything is loaded."""
        self._loaded = False
        self.call("Page.navigate", url=url)
        while not self._loaded:
            self._receive(monotonic() + TIMEOUT_S)

    def prefer(self, scheme: str) -> None:
        """Prefer colours that are `light` or `dark`."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def run(self, script: str) -> Any:
        """Return the value of an expression in the page; a promise is awaited."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise ChromiumError(json.dumps(found["exceptionDetails"]))
        return found["result"].get("value")

    def visible_text(self) -> str:
        """Return what can be read in the page, also where its scripts do not run."""
        texts = self.call("DOMSnapshot.captureSnapshot", computedStyles=[])
        strings = texts["strings"]
        return "\n".join(strings[place] for place in texts["documents"][0]["layout"]["text"] if place >= 0)

    def press(self, key: str, code: int) -> None:
        """Press and release a key."""
        fields = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        text = {"text": "\r"} if key == "Enter" else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", **fields, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", **fields)

    def picture(self, clip: Clip) -> bytes:
        """Return a part of the page as PNG."""
        part = clip._asdict() | {"scale": 1}
        return base64.b64decode(self.call("Page.captureScreenshot", clip=part, captureBeyondViewport=True)["data"])

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and return its answer."""
        self._number += 1
        session = {"sessionId": self._session} if self._session else {}
        message = {"id": self._number, "method": method, "params": parameters, **session}
        os.write(self._command, json.dumps(message).encode() + b"\0")
        deadline = monotonic() + TIMEOUT_S
        while True:
            answer = self._receive(deadline)
            if answer.get("id") == self._number:
                break
        if "error" in answer:
            raise ChromiumError(f"{method}: {answer['error'].get('message')}")
        result: dict[str, Any] = answer["result"]
        return result

    def _receive(self, deadline: float) -> Mapping[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._answers], [], [], max(0.0, deadline - monotonic()))
            block = os.read(self._answers, 2**20) if ready else b""
            if not block:
                raise ChromiumError("the browser does not answer" if not ready else "the browser has ended")
            self._buffer += block
        text, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, event: str, facts: Mapping[str, Any]) -> None:
        if event == "Page.loadEventFired":
            self._loaded = True
        elif event == "Network.requestWillBeSent":
            self.requests.append(facts["request"]["url"])
        elif event == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(facts["exceptionDetails"]))
        elif event == "Log.entryAdded":
            self.complaints.append(f"{facts['entry']['level']}: {facts['entry']['text']}")
        elif event == "Runtime.consoleAPICalled":
            self.complaints.append(f"{facts['type']}: {json.dumps(facts['args'])}")


@contextmanager
def page(width: int = 1200, height: int = 900, *, scripts: bool = True) -> Iterator[Page]:
    """Return a page of a browser that is started for it and ended afterwards, with a profile of its own.

    Raises:
        ChromiumError: Chromium is not installed, or does not answer.
    """
    program = executable()
    if program is None:
        raise ChromiumError(f"none of {', '.join(NAMES)} is installed")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        theirs, command = map(_high, os.pipe())
        answers, wrote = map(_high, os.pipe())
        silence = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in (0, 1, 2)]
        pipes = [(os.POSIX_SPAWN_DUP2, theirs, 3), (os.POSIX_SPAWN_DUP2, wrote, 4)]
        arguments = [program, *FLAGS, f"--user-data-dir={profile}", f"--crash-dumps-dir={profile}"]
        environment = {**os.environ, "HOME": profile}
        process = os.posix_spawn(
            program, arguments, environment, file_actions=[*silence, *pipes], setpgroup=0, setsigmask=[]
        )
        os.close(theirs)
        os.close(wrote)
        try:
            tab = Page(command, answers)
            tab.begin(width, height, scripts=scripts)
            yield tab
        finally:
            os.killpg(process, signal.SIGKILL)
            os.waitpid(process, 0)
            os.close(command)
            os.close(answers)


def _high(descriptor: int) -> int:
    """Return the same pipe under a number that is in nobody's way."""
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 10)
    os.close(descriptor)
    return moved

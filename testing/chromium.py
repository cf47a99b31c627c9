"""Drives a headless Chromium through its DevTools pipe, without a library.

  with chromium.Browser() as browser:
    tab = browser.open("file:///tmp/page.html", width=390)
    tab.evaluate("document.title")

Chromium reads commands from file descriptor 3 and answers on 4, each message
JSON with a zero byte behind it; a shell moves our pipes there. For tests.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import pathlib
import select
import shutil
import subprocess
import tempfile
import time
from types import TracebackType
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
INSTALL = (
  "no Chromium in PATH (looked for chromium, chromium-browser and "
  "google-chrome): install one, on Debian with `apt-get install chromium`"
)
_FLAGS = (
  "--headless",
  "--no-sandbox",
  "--disable-gpu",
  "--disable-dev-shm-usage",
  "--disable-background-networking",
  "--disable-component-update",
  "--no-first-run",
  "--remote-debugging-pipe",
)
_MOVE_PIPES = 'exec "$0" "$@" 3<&0 4>&1 </dev/null >/dev/null'


class Tab:
  """A page in the browser, and what happened in it.

  Attributes:
    requests: every URL that it asked for, in order.
    problems: console messages, log entries and exceptions, as text.
  """

  def __init__(self, browser: Browser, session: str):
    """Of a session that is attached already."""
    self.requests: list[str] = []
    self.problems: list[str] = []
    self._browser = browser
    self._session = session

  def call(self, method: str, **params: Any) -> dict[str, Any]:
    """Sends one DevTools command to this page and returns its result."""
    return self._browser.call(method, params, self._session)

  def evaluate(self, script: str) -> Any:
    """The value of a JavaScript expression.

    Raises:
      RuntimeError: the expression threw.
    """
    answer = self.call(
      "Runtime.evaluate", expression=script, returnByValue=True
    )
    if "exceptionDetails" in answer:
      raise RuntimeError(f"{script!r}: {answer['exceptionDetails']}")
    return answer["result"].get("value")

  def screenshot(self, file: str | os.PathLike[str]) -> None:
    """Writes the whole page, not just what is in view, as PNG."""
    answer = self.call("Page.captureScreenshot", captureBeyondViewport=True)
    pathlib.Path(file).write_bytes(base64.b64decode(answer["data"]))

  def pdf(self, file: str | os.PathLike[str]) -> None:
    """Writes the page as it prints."""
    answer = self.call("Page.printToPDF", printBackground=True)
    pathlib.Path(file).write_bytes(base64.b64decode(answer["data"]))

  def note(self, event: dict[str, Any]) -> None:
    """Takes down an event of this page."""
    params = event["params"]
    match event["method"]:
      case "Network.requestWillBeSent":
        self.requests.append(params["request"]["url"])
      case "Runtime.consoleAPICalled":
        self.problems.append(f"console: {params['args']}")
      case "Runtime.exceptionThrown":
        self.problems.append(f"exception: {params['exceptionDetails']}")
      case "Log.entryAdded":
        self.problems.append(f"log: {params['entry']['text']}")


class Browser:
  """A Chromium that runs until the `with` block ends.

  Args:
    seconds: how long any one answer may take.

  Raises:
    FileNotFoundError: no Chromium is installed; says how to get one.
  """

  def __init__(self, *, seconds: float = 60):
    """Starts it, in a profile of its own."""
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
      raise FileNotFoundError(INSTALL)
    self._seconds = seconds
    self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
    self._tabs: dict[str, Tab] = {}
    self._events: list[dict[str, Any]] = []
    self._numbers = itertools.count(1)
    self._rest = b""
    folder = f"--user-data-dir={self._profile.name}"
    self._process = subprocess.Popen(
      ["/bin/sh", "-c", _MOVE_PIPES, program, *_FLAGS, folder],
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      stderr=subprocess.DEVNULL,
      bufsize=0,
    )

  def __enter__(self) -> Browser:
    """The browser itself."""
    return self

  def __exit__(
    self,
    kind: type[BaseException] | None,
    error: BaseException | None,
    trace: TracebackType | None,
  ) -> None:
    """Ends the process, and removes its profile."""
    try:
      self.call("Browser.close", {})
      self._process.wait(10)
    except (OSError, RuntimeError, subprocess.TimeoutExpired):
      self._process.kill()
      self._process.wait()
    for pipe in (self._process.stdin, self._process.stdout):
      if pipe is not None:
        pipe.close()
    self._profile.cleanup()

  def open(
    self, url: str, *, width: int = 1280, height: int = 900, dark: bool = False
  ) -> Tab:
    """Opens a page in a new tab and waits until it has loaded."""
    target = self.call("Target.createTarget", {"url": "about:blank"})
    session = self.call(
      "Target.attachToTarget",
      {"targetId": target["targetId"], "flatten": True},
    )["sessionId"]
    tab = self._tabs[session] = Tab(self, session)
    for domain in ("Page", "Runtime", "Log", "Network"):
      tab.call(f"{domain}.enable")
    tab.call(
      "Emulation.setDeviceMetricsOverride",
      width=width,
      height=height,
      deviceScaleFactor=1,
      mobile=False,
    )
    scheme = "dark" if dark else "light"
    tab.call(
      "Emulation.setEmulatedMedia",
      features=[{"name": "prefers-color-scheme", "value": scheme}],
    )
    tab.call("Page.navigate", url=url)
    self._await_load(session)
    return tab

  def call(
    self, method: str, params: dict[str, Any], session: str | None = None
  ) -> dict[str, Any]:
    """Sends one command and returns its result.

    Raises:
      RuntimeError: the browser refuses it, or has ended.
      TimeoutError: no answer came.
    """
    number = next(self._numbers)
    message = {"id": number, "method": method, "params": params}
    if session is not None:
      message["sessionId"] = session
    if self._process.stdin is None:
      raise RuntimeError("Chromium has no pipe")
    self._process.stdin.write(json.dumps(message).encode() + b"\0")
    deadline = time.monotonic() + self._seconds
    while True:
      answer = self._next(deadline)
      if answer.get("id") == number:
        if "error" in answer:
          raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]

  def _await_load(self, session: str) -> None:
    deadline = time.monotonic() + self._seconds
    while not any(
      event["method"] == "Page.loadEventFired"
      and event.get("sessionId") == session
      for event in self._events
    ):
      self._next(deadline)

  def _next(self, deadline: float) -> dict[str, Any]:
    """The next message; an event among them is given to its tab."""
    pipe = self._process.stdout
    if pipe is None:
      raise RuntimeError("Chromium has no pipe")
    while b"\0" not in self._rest:
      left = max(0.0, deadline - time.monotonic())
      if not select.select([pipe], [], [], left)[0]:
        raise TimeoutError(f"no answer of Chromium in {self._seconds} s")
      piece = os.read(pipe.fileno(), 1 << 20)
      if not piece:
        raise RuntimeError("Chromium ended before it answered")
      self._rest += piece
    text, self._rest = self._rest.split(b"\0", 1)
    message = json.loads(text)
    if "method" in message:
      self._events.append(message)
      tab = self._tabs.get(message.get("sessionId", ""))
      if tab is not None:
        tab.note(message)
    return message

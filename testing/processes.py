"""Several processes of one program: all end well, or the test says why not."""

from __future__ import annotations

import contextlib
import os
import pathlib
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence

_SHOWN = 4000  # characters of each process's output


@contextlib.contextmanager
def free_port() -> Iterator[int]:
  """A port of the loopback address that nobody else is given meanwhile.

  It stays bound here, without listening; who sets SO_REUSEPORT, as gRPC does,
  can listen on it all the same.
  """
  with socket.socket() as holder:
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    holder.bind(("127.0.0.1", 0))
    yield holder.getsockname()[1]


def run(
  code: str,
  arguments: Sequence[Sequence[str]],
  *,
  folder: pathlib.Path,
  environment: Mapping[str, str],
  timeout: float,
) -> None:
  """Runs a program once for each of `arguments`, side by side.

  What is importable here is importable there. All processes are killed when
  one of them fails, or the time is over, or this process ends: each of them
  should leave where its standard input does (`leave_with_parent`).

  Args:
    code: Python; its `sys.argv[1:]` are the arguments.
    arguments: of each process.
    folder: where their output is kept.
    environment: variables besides this process's.
    timeout: seconds for all.

  Raises:
    RuntimeError: a process failed; with what each of them printed.
    TimeoutError: they took longer; with what each of them printed.
  """
  logs = [folder / f"process_{i}.log" for i in range(len(arguments))]
  command = [sys.executable, "-P", "-c", code]
  paths = os.pathsep.join(os.path.abspath(p) for p in sys.path)
  with contextlib.ExitStack() as stack:
    processes = []
    for log, own in zip(logs, arguments, strict=True):
      process = subprocess.Popen(
        [*command, *own],
        stdin=subprocess.PIPE,
        stdout=stack.enter_context(log.open("wb")),
        stderr=subprocess.STDOUT,
        env={**os.environ, "PYTHONPATH": paths, **environment},
      )
      stack.callback(_end, process)
      processes.append(process)
    error = _wait(processes, timeout)
  if error is not None:
    raise type(error)(f"{error}\n{_outputs(logs)}")


def leave_with_parent() -> None:
  """Ends this process when its standard input does."""

  def listen() -> None:
    os.read(0, 1)  # without the lock of sys.stdin, which Python's end wants
    os._exit(1)

  threading.Thread(target=listen, daemon=True).start()


def _wait(
  processes: Sequence[subprocess.Popen], timeout: float
) -> Exception | None:
  """What went wrong first, if anything did."""
  deadline = time.monotonic() + timeout
  while True:
    codes = [process.poll() for process in processes]
    for i, code in enumerate(codes):
      if code:
        return RuntimeError(f"process {i} ended with status {code}")
    if None not in codes:
      return None
    if time.monotonic() > deadline:
      slow = [i for i, code in enumerate(codes) if code is None]
      return TimeoutError(f"processes {slow} took more than {timeout:g} s")
    time.sleep(0.05)


def _end(process: subprocess.Popen) -> None:
  process.kill()
  process.wait()
  process.stdin.close()


def _outputs(logs: Sequence[pathlib.Path]) -> str:
  return "\n".join(
    f"---- process {i}:\n{log.read_text(errors='replace')[-_SHOWN:]}"
    for i, log in enumerate(logs)
  )

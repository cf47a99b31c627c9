"""Compiles programs in a process of their own, and returns their schedules.

libtpu writes its dumps to a folder that is named when the library is loaded.
So a program is exported, and a process that dumps (`worker.py`) compiles it and
answers in JSON. The folder goes away with the process.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import functools
import json
import os
import queue
import re
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np

from gmm.aot import compiling, topology, worker
from gmm.aot.scheduling import Arm, Schedule

# The dump's format was read from these; another is read with a warning.
KNOWN_LIBTPU = ("0.0.52",)
# Not -m, nor without -P: those look for modules in the current folder first.
_MAIN = f"from {worker.__package__} import worker; worker.main()"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Compiled:
  """What a program was compiled to.

  Attributes:
    schedules: of its gmm kernels, in program order.
    hlo: the scheduled HLO, for `weight_copies`.
    temp_bytes: HBM for temporaries.
    code_bytes: code of the whole program.
    compile_seconds: time it took here.
  """

  schedules: tuple[Schedule, ...]
  hlo: str
  temp_bytes: int
  code_bytes: int
  compile_seconds: float


def schedule(
  fn: Callable[..., Any],
  *specs: Any,
  chip: str = "v6e",
  row_major: bool = True,
  timeout: float = 600.0,
) -> tuple[Schedule, ...]:
  """Compiles `fn` and reads the schedules of the gmm kernels in it.

    fn, specs = aot.product("nt", m=65536, g=128, k=3072, n=2048)
    (nt,) = aot.schedule(fn, *specs, chip="v6e")
    nt.arms[0].mxu_busy

  What is read is the compiler's plan: a bundle is a cycle if nothing stalls.

  Args:
    fn: a function that can be jitted and exported; on one device.
    *specs: its arguments, as in `compile_for`.
    chip: as in `compile_for`.
    row_major: as in `compile_for`.
    timeout: seconds after which it is given up.

  Returns:
    One for each kernel, in program order.

  Raises:
    CompileError: the compiler refuses the program.
    FormatError: the compiler's dump is not as this was written for.
    TimeoutError: `timeout` has passed.
    ValueError: an unknown chip, or a program without a gmm kernel.
    ImportError: libtpu is not installed.
  """
  with scheduler(timeout=timeout) as compile_program:
    found = compile_program(fn, *specs, chip=chip, row_major=row_major)
  if not found.schedules:
    raise ValueError("`fn` holds no gmm kernel when it is compiled for a TPU")
  return found.schedules


@contextlib.contextmanager
def scheduler(*, timeout: float = 600.0) -> Iterator[Callable[..., Compiled]]:
  """One process for many programs: what a table of schedules wants.

    with aot.scheduler() as compile_program:
      for fn, specs in programs:
        found = compile_program(fn, *specs, chip="v6e")

  Args:
    timeout: seconds for each program.

  Yields:
    A function that takes what `schedule` takes and returns a `Compiled`; it
    raises what `schedule` raises.
  """
  check_version(topology.compiler_version())
  # The compiler's flags, which name the folder, are cut at spaces.
  spaced = re.search(r"\s", tempfile.gettempdir())
  with tempfile.TemporaryDirectory(
    prefix="gmm-aot-", dir="/tmp" if spaced else None
  ) as folder:
    other_end = _OtherEnd(folder, timeout)
    try:
      yield functools.partial(_compile, other_end.ask)
    finally:
      other_end.close()


def check_version(libtpu: str) -> None:
  """Warns of a compiler whose dumps nobody has looked at."""
  if libtpu not in KNOWN_LIBTPU:
    warnings.warn(
      f"the schedules of libtpu {libtpu} are read as those of "
      f"{', '.join(KNOWN_LIBTPU)}; what cannot be read that way is an error",
      stacklevel=4,
    )


# ---- the pipe


class _OtherEnd:
  """The process, and what it says. One that has died is started again."""

  def __init__(self, folder: str, timeout: float) -> None:
    self.folder, self.timeout = folder, timeout
    self.lock = threading.Lock()  # a question and its answer are one
    self.log = open(os.path.join(folder, "log"), "w+b")
    self.process: subprocess.Popen | None = None
    self.answers: queue.Queue[bytes | None] = queue.Queue()

  def _start(self) -> None:
    self.log.truncate(0)
    self.answers = queue.Queue()
    self.process = subprocess.Popen(
      [sys.executable, "-P", "-c", _MAIN, self.folder],
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      stderr=self.log,
      env=_environment(self.folder),
    )
    # A pipe cannot be waited for with a time limit; a queue can.
    threading.Thread(
      target=_read, args=(self.process, self.answers), daemon=True
    ).start()

  def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
    """Sends a request and returns the answer to it."""
    with self.lock:
      return self._ask(request)

  def _ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
    if self.process is None or self.process.poll() is not None:
      self.close_process()
      self._start()
    try:
      self.process.stdin.write(json.dumps(request).encode() + b"\n")
      self.process.stdin.flush()
      answer = self.answers.get(timeout=self.timeout)
    except queue.Empty:
      self.close_process()
      raise TimeoutError(
        f"the TPU compiler took more than {self.timeout:g} s; give it more "
        "with `timeout`"
      ) from None
    except BrokenPipeError:
      answer = None
    if answer is None:
      raise compiling.CompileError(
        f"the TPU compiler's process ended: {self.last_words()}"
      )
    return json.loads(answer)

  def last_words(self) -> str:
    """The last line of the process's log."""
    self.process.wait(timeout=10)
    self.log.seek(0)
    said = self.log.read().decode(errors="replace").strip().splitlines()
    return said[-1] if said else f"status {self.process.returncode}"

  def close_process(self) -> None:
    """Ends the process, whatever it is doing."""
    if self.process is None:
      return
    self.process.kill()
    self.process.wait()
    for pipe in (self.process.stdin, self.process.stdout):
      with contextlib.suppress(BrokenPipeError):
        pipe.close()
    self.process = None

  def close(self) -> None:
    """Ends the process and its log."""
    self.close_process()
    self.log.close()


def _read(
  process: subprocess.Popen, answers: queue.Queue[bytes | None]
) -> None:
  """Passes on a process's answers, and None when there will be no more."""
  with contextlib.suppress(ValueError):  # closed meanwhile
    for line in process.stdout:
      answers.put(line)
  answers.put(None)


def _environment(folder: str) -> dict[str, str]:
  given = os.environ.get("LIBTPU_INIT_ARGS", "")
  dump = f"--xla_jf_dump_to={folder}/dump --xla_jf_dump_llo_text=true"
  return {
    **os.environ,
    # What is importable here is importable there.
    "PYTHONPATH": os.pathsep.join(os.path.abspath(p) for p in sys.path),
    "JAX_PLATFORMS": "cpu",
    "JAX_TRACEBACK_FILTERING": "off",
    "LIBTPU_INIT_ARGS": f"{given} {dump}".strip(),
  }


def _compile(
  ask: Callable[[Mapping[str, Any]], dict[str, Any]],
  fn: Callable[..., Any],
  *specs: Any,
  chip: str = "v6e",
  row_major: bool = True,
) -> Compiled:
  topology.devices(chip)  # raises here what is wrong with `chip`
  # Leaves only: not every pytree can be written to a pipe.
  leaves, tree = jax.tree.flatten(jax.tree.map(_spec, specs))

  def of_leaves(*leaves: Any) -> list[Any]:
    return jax.tree.leaves(fn(*tree.unflatten(leaves)))

  exported = jax.export.export(jax.jit(of_leaves), platforms=["tpu"])(*leaves)
  answer = ask(
    {
      "program": base64.b64encode(exported.serialize()).decode(),
      "chip": chip,
      "row_major": row_major,
      "x64": jax.dtypes.canonicalize_dtype(np.int64) == np.int64,
    }
  )
  if "error" in answer:
    raise worker.ERRORS[answer["error"]](answer["message"])
  schedules = tuple(
    Schedule(**(fields | {"arms": tuple(Arm(**a) for a in fields["arms"])}))
    for fields in answer.pop("schedules")
  )
  return Compiled(schedules=schedules, **answer)


def _spec(leaf: Any) -> jax.ShapeDtypeStruct:
  if not isinstance(leaf, jax.ShapeDtypeStruct):
    leaf = jax.typeof(leaf)
  return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, weak_type=leaf.weak_type)

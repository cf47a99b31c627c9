"""Whether a Python has what the lock file says.

Bazel makes the environment on this machine from the lock. A pool's workers
have one of their own, which somebody made, perhaps from last month's lock.
"""

from __future__ import annotations

from collections.abc import Mapping

from packaging import requirements, utils


def differences(lock: str, installed: Mapping[str, str]) -> list[str]:
  """What keeps an environment from being the lock file's, a line each.

  Args:
    lock: the text of a requirements.lock, as pip and uv write it.
    installed: the names of the packages there are, and their versions.
  """
  there = {
    utils.canonicalize_name(name): version
    for name, version in installed.items()
  }
  result = []
  for line in lock.replace("\\\n", "").splitlines():
    entry = line.partition("--hash=")[0].strip()
    if not entry or entry.startswith("#"):
      continue
    wanted = requirements.Requirement(entry)
    if wanted.marker is not None and not wanted.marker.evaluate():
      continue
    version = there.get(utils.canonicalize_name(wanted.name))
    if version is None:
      result.append(f"{wanted.name}{wanted.specifier}: not installed")
    elif not wanted.specifier.contains(version, prereleases=True):
      result.append(f"{wanted.name}{wanted.specifier}: {version} is installed")
  return result

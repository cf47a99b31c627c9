"""The files that set a machine up: bazelw, the lock, a pool's Python."""

import os
import pathlib
import re
import shutil
import subprocess

import pytest

_ROOT = pathlib.Path(__file__).absolute().parent.parent


@pytest.fixture(name="bazelw")
def _bazelw(tmp_path):
  """Runs bazelw with a PATH of given programs, each a shell script's body."""
  folder = tmp_path / "bin"
  folder.mkdir()
  for name in ("bash", "env"):
    (folder / name).symlink_to(shutil.which(name))
  usual = {"id": f'exec {shutil.which("id")} "$@"'}

  def run(*arguments, **programs):
    for name, body in (usual | programs).items():
      path = folder / name.replace("_", "-")
      assert not path.is_symlink()  # Writing would go through it.
      path.write_text(f"#!{folder}/bash\n{body}\n")
      path.chmod(0o755)
    result = subprocess.run(
      [_ROOT / "bazelw", *arguments],
      env={"PATH": str(folder)},
      capture_output=True,
      text=True,
      timeout=60,
      check=False,
    )
    return result.returncode, result.stdout, result.stderr.splitlines()

  return run


@pytest.mark.parametrize("name", ["bazel", "bazelisk"])
def test_bazelw_runs_the_bazel_on_path(bazelw, name):
  says = f'echo {name} "$@"; exit 3'
  status, out, _ = bazelw("test", "//gmm:all", **{name: says})
  assert (status, out) == (3, f"{name} test //gmm:all\n")


def test_bazelw_prefers_bazel(bazelw):
  _, out, _ = bazelw("info", bazel="echo one", bazelisk="echo two")
  assert out == "one\n"


def test_bazelw_without_apt_says_what_to_install(bazelw):
  status, out, err = bazelw("test", "//...")
  assert (status, out) == (1, "")
  assert len(err) == 2
  assert "apt-get install bazel-bootstrap" in err[0]
  assert "bazelisk" in err[1]


def test_bazelw_installs_through_sudo_that_asks_nothing(bazelw, tmp_path):
  new = tmp_path / "bin" / "bazel"
  install = f"""
echo "apt $@" >&2
if [[ "$1" == install ]]; then
  printf '#!{tmp_path}/bin/bash\\necho installed' > {new}
  {shutil.which("chmod")} +x {new}
fi
"""
  status, out, err = bazelw(
    "test",
    apt_get=install,
    id="echo 1000",
    sudo='[[ "$1" == -n ]] && shift; [[ "$1" == true ]] || "$@"',
  )
  assert (status, out) == (0, "installed\n")
  assert err[0] == "bazelw: installing bazel-bootstrap with apt-get"


def test_bazelw_leaves_apt_alone_without_rights(bazelw):
  status, _, err = bazelw(
    "test", apt_get="echo touched >&2", id="echo 1000", sudo="exit 1"
  )
  assert status == 1
  assert "touched" not in err


def _locked():
  """The lock's entries: (name, version, marker, its lines of hashes)."""
  text = (_ROOT / "requirements.lock").read_text().replace("\\\n", "")
  for line in text.splitlines():
    requirement, *hashes = line.split("--hash=")
    pin, _, marker = requirement.partition(";")
    name, _, version = pin.strip().partition("==")
    yield name, version, marker.strip(), hashes


def test_lock_pins_every_package_by_hash():
  for name, version, _, hashes in _locked():
    assert name and version
    assert hashes, name
    assert all(re.fullmatch(r"sha256:[0-9a-f]{64} *", h) for h in hashes), name


def test_lock_names_no_host():
  assert "//" not in (_ROOT / "requirements.lock").read_text()


def test_lock_has_what_was_asked_for():
  asked = (_ROOT / "requirements.in").read_text().splitlines()
  names = {re.match(r"[\w-]+", line)[0] for line in asked if line[0] != "#"}
  assert names <= {name for name, *_ in _locked()}


def test_lock_has_a_jax_for_3_11_and_a_newer_one():
  markers = {marker for name, _, marker, _ in _locked() if name == "jax"}
  old = "python_full_version < '3.12'"
  new = "python_full_version >= '3.12'"
  assert markers == {old, new}


def test_libtpu_is_for_linux_on_x86_64():
  markers = [marker for name, _, marker, _ in _locked() if name == "libtpu"]
  assert markers
  assert all("x86_64" in m and "linux" in m for m in markers)


@pytest.mark.parametrize("name", ["bazelw", "tools/make_worker_python"])
def test_is_executable(name):
  assert os.access(_ROOT / name, os.X_OK)


@pytest.fixture(name="make_python")
def _make_python(tmp_path):
  """Runs make_worker_python with a Python that only says how it was called."""
  fake = tmp_path / "python"
  bash = shutil.which("bash")

  def run(*arguments, new_enough=True, fails_at="never"):
    fake.write_text(f"""#!{bash}
echo "${{0##*/}} $*"
case "$*" in
  *version_info*) exit {0 if new_enough else 1} ;;
  *"{fails_at}"*) exit 3 ;;
  *venv*) mkdir -p "${{!#}}/bin" && cp "$0" "${{!#}}/bin/python3" ;;
esac
""")
    fake.chmod(0o755)
    result = subprocess.run(
      [_ROOT / "tools" / "make_worker_python", *arguments],
      env={"PATH": os.environ["PATH"], "GMM_PYTHON": str(fake)},
      capture_output=True,
      text=True,
      timeout=60,
      check=False,
    )
    return result.returncode, result.stdout.splitlines(), result.stderr

  return run


def test_a_workers_python_is_made_from_the_lock(make_python, tmp_path):
  folder = tmp_path / "worker"
  status, said, _ = make_python(str(folder))
  assert status == 0
  _, venv, install, check, made = said
  assert venv == f"python -I -m venv {folder}"
  assert install.startswith("python3 -I -m pip ")
  assert "--require-hashes" in install and "--no-deps" in install
  assert install.endswith(f"-r {_ROOT / 'requirements.lock'}")
  assert check.endswith(" check")
  assert made.endswith(f"{folder}/bin/python3")


def test_a_workers_python_is_new_enough(make_python, tmp_path):
  status, said, err = make_python(str(tmp_path / "worker"), new_enough=False)
  assert (status, len(said)) == (1, 1)
  assert "Python 3.11 or newer" in err and "GMM_PYTHON" in err


@pytest.mark.parametrize("step", ["-m venv", " install ", " check"])
def test_a_workers_python_is_made_whole_or_not(make_python, tmp_path, step):
  status, said, _ = make_python(str(tmp_path / "worker"), fails_at=step)
  assert status == 3
  assert step in said[-1]

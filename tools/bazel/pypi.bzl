"""The repository `@pypi`: a virtual environment made from the lock file.

It holds the Python toolchain, `@pypi//:toolchain`, whose interpreter is the
environment's own, and a target for each locked package under the names of
rules_python's hub: `@pypi//pytest_xdist`, or `@pypi//pytest_xdist:pkg`. The
packages are importable from the interpreter; the targets declare the
dependency and carry the list of what is installed, so that a new lock file
or another interpreter runs the tests again.
"""

_MIN_PYTHON = [3, 11]

_PROBE = "import sys; print(sys.executable, *sys.version_info[:2])"

_PIP_TIMEOUT_S = 3600

# Linux reads this much of a script's first line, the two signs included.
_MAX_SHEBANG = 127

_ROOT_BUILD = """\
load("@bazel_tools//tools/python:toolchain.bzl", "py_runtime_pair")

package(default_visibility = ["//visibility:public"])

exports_files(["installed.txt"])

py_runtime(
    name = "runtime",
    interpreter_path = "{interpreter}",
    python_version = "PY3",
    stub_shebang = "{shebang}",
)

py_runtime_pair(
    name = "runtime_pair",
    py3_runtime = ":runtime",
)

toolchain(
    name = "toolchain",
    toolchain = ":runtime_pair",
    toolchain_type = "@bazel_tools//tools/python:toolchain_type",
)
"""

_PACKAGE_BUILD = """\
package(default_visibility = ["//visibility:public"])

py_library(
    name = "{name}",
    data = ["//:installed.txt"],
)

alias(
    name = "pkg",
    actual = ":{name}",
)
"""

def _probe(rctx, python):
    """The interpreter behind a command: struct(path, version), or None."""
    result = rctx.execute([python, "-I", "-c", _PROBE])
    if result.return_code != 0:
        return None
    words = result.stdout.strip().rsplit(" ", 2)
    return struct(path = words[0], version = [int(words[1]), int(words[2])])

def _version_text(version):
    return ".".join([str(part) for part in version])

def _find_python(rctx):
    """GMM_PYTHON, else python3 if new enough, else the newest python3.x."""
    chosen = rctx.os.environ.get("GMM_PYTHON")
    if chosen:
        python = _probe(rctx, chosen)
        if not python:
            fail("GMM_PYTHON={} is no Python interpreter.".format(chosen))
        if python.version < _MIN_PYTHON:
            fail("GMM_PYTHON={} is Python {}; gmm needs {} or newer.".format(
                chosen,
                _version_text(python.version),
                _version_text(_MIN_PYTHON),
            ))
        return python

    seen = []
    minors = [str(minor) for minor in range(30, _MIN_PYTHON[1] - 1, -1)]
    for name in ["python3"] + ["python3." + minor for minor in minors]:
        command = rctx.which(name)
        python = _probe(rctx, command) if command else None
        if not python:
            continue
        if python.version >= _MIN_PYTHON:
            return python
        seen.append("{} is {}".format(command, _version_text(python.version)))
    fail((
        "gmm needs Python {} or newer, and PATH has none ({}). Install one, " +
        "or name it: --repo_env=GMM_PYTHON=/path/to/python3"
    ).format(_version_text(_MIN_PYTHON), ", ".join(seen) or "no python3 at all"))

def _run(rctx, arguments, complaint):
    result = rctx.execute(arguments, timeout = _PIP_TIMEOUT_S)
    if result.return_code != 0:
        fail("{}\n{}{}".format(complaint, result.stdout, result.stderr))
    return result.stdout

def _locked_names(text):
    """The packages of a lock file, each once, spelled as targets are."""
    names = {}
    for line in text.splitlines():
        if "==" in line and not line.startswith((" ", "#")):
            name = line.split("==")[0].strip().lower()
            names[name.replace("-", "_").replace(".", "_")] = None
    return names.keys()

def _pypi_repository_impl(rctx):
    lock = rctx.path(rctx.attr.requirements_lock)
    base = _find_python(rctx)

    rctx.report_progress("making a virtual environment of " + base.path)
    _run(
        rctx,
        [base.path, "-I", "-m", "venv", "venv"],
        "{} cannot make a virtual environment with pip in it. ".format(
            base.path,
        ) + "On Debian and Ubuntu: apt-get install python3-venv",
    )

    # -I keeps the caller's PYTHONPATH and user packages out; pip still reads
    # its own settings, so PIP_INDEX_URL and the like hold.
    interpreter = str(rctx.path("venv/bin/python"))
    pip = [interpreter, "-I", "-m", "pip", "--disable-pip-version-check"]
    rctx.report_progress("installing " + lock.basename)
    _run(
        rctx,
        pip + ["install", "--no-input", "--require-hashes", "--no-deps"] +
        ["-r", str(lock)],
        "pip could not install {} for Python {}.".format(
            lock,
            _version_text(base.version),
        ),
    )
    _run(rctx, pip + ["check"], "{} does not fit together.".format(lock))

    frozen = _run(rctx, pip + ["freeze", "--all"], "pip freeze failed.")
    version = _run(rctx, [interpreter, "-VV"], "The new Python does not run.")
    rctx.file("installed.txt", version + frozen, executable = False)

    shebang = "#!" + interpreter
    if len(shebang) > _MAX_SHEBANG or " " in interpreter:
        shebang = "#!/usr/bin/env python3"
    rctx.file("BUILD", _ROOT_BUILD.format(
        interpreter = interpreter,
        shebang = shebang,
    ), executable = False)
    for name in _locked_names(rctx.read(lock)):
        rctx.file(
            name + "/BUILD",
            _PACKAGE_BUILD.format(name = name),
            executable = False,
        )

pypi_repository = repository_rule(
    implementation = _pypi_repository_impl,
    attrs = {
        "requirements_lock": attr.label(
            doc = "Pinned packages with hashes, as pip and uv write them.",
            mandatory = True,
            allow_single_file = True,
        ),
    },
    environ = ["GMM_PYTHON"],
    doc = "Installs a lock file; see the top of this file.",
)

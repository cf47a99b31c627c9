"""The repository `@tpu_pool`: the Python toolchain of a TPU pool's workers.

A virtual environment on this machine does not travel to another. A worker has
one of its own, made from the same lock file (docs/tpu_pool.md), at a path that
is the same on each. `--extra_toolchains=@tpu_pool//:toolchain` runs tests with
it; `--repo_env=GMM_POOL_PYTHON=/its/bin/python3` says where it is.
"""

_DEFAULT_PYTHON = "/opt/gmm/bin/python3"

_BUILD = """\
load("@rules_python//python:defs.bzl", "py_runtime", "py_runtime_pair")

package(default_visibility = ["//visibility:public"])

py_runtime(
    name = "runtime",
    interpreter_path = "{interpreter}",
    python_version = "PY3",
    # Any python3 starts it, and names the path where there is no such file.
    stub_shebang = "#!/usr/bin/env python3",
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

def _pool_repository_impl(rctx):
    interpreter = rctx.os.environ.get("GMM_POOL_PYTHON") or _DEFAULT_PYTHON
    if not interpreter.startswith("/"):
        fail(("GMM_POOL_PYTHON={} is no absolute path of a Python on the " +
              "workers.").format(interpreter))
    rctx.file(
        "BUILD",
        _BUILD.format(interpreter = interpreter),
        executable = False,
    )

pool_repository = repository_rule(
    implementation = _pool_repository_impl,
    environ = ["GMM_POOL_PYTHON"],
    doc = "Writes the toolchain; see the top of this file.",
)

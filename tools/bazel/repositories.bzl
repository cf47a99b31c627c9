"""What `//gmm:ops` needs, for a WORKSPACE: ours or another's.

    load("@jax_gmm//tools/bazel:repositories.bzl", "gmm_repositories")

    gmm_repositories()

Bazel 7 and later use MODULE.bazel instead and never load this file.
"""

load("//tools/bazel:pool.bzl", "pool_repository")
load("//tools/bazel:pypi.bzl", "pypi_repository")
load("//tools/bazel:shims.bzl", "SHIMS", "shim_repository")

# buildifier: disable=unnamed-macro
def gmm_repositories():
    """Defines the repositories and the Python toolchain that are missing.

    A repository that the calling workspace has already defined wins, so call
    this last. Where `pypi` is not ours, neither is the Python toolchain.
    """
    for name in SHIMS:
        if not native.existing_rule(name):
            shim_repository(name = name)

    if not native.existing_rule("pypi"):
        pypi_repository(
            name = "pypi",
            requirements_lock = Label("//:requirements.lock"),
        )
        native.register_toolchains("@pypi//:toolchain")

    # Its toolchain is for --extra_toolchains alone.
    if not native.existing_rule("tpu_pool"):
        pool_repository(name = "tpu_pool")

"""Test targets: pytest under Bazel, once, once for each backend, or pooled."""

load("@rules_python//python:defs.bzl", "py_test")

_RUNNER = "//testing:runner.py"

# Backend of the tests -> (end of the target's name, its tags).
_BACKENDS = {
    "interpret": ("interpret", ["interpret"]),
    "pallas": ("tpu", ["pallas", "tpu"]),
    "xla": ("xla", ["cpu", "xla"]),
}

# Chip, as gmm/kernels/chip.py names it -> its workers in a pool: the value of
# the property `Pool`, a tag, and the end of the target's name.
_POOLS = {
    "tpu7x": "tpu7x",
    "v4": "tpu_v4",
    "v5e": "tpu_v5e",
    "v5p": "tpu_v5p",
    "v6e": "tpu_v6e",
}

def pytest_test(name, srcs, deps = [], args = [], tags = [], workers = 0, **kwargs):
    """A py_test that hands its sources to pytest.

    It obeys `--test_filter`, `shard_count` and the XML file; `--test_arg` goes
    to pytest.

    Args:
      name: of the target.
      srcs: the test files; all of them are collected.
      deps: what they import. pytest itself comes with the runner.
      args: more arguments for pytest.
      tags: Bazel's.
      workers: processes of pytest-xdist inside each shard; 0 is none.
      **kwargs: further attributes of py_test.
    """
    if workers:
        args = args + ["-n{}".format(workers)]
        tags = tags + ["cpu:{}".format(workers)]
    py_test(
        name = name,
        srcs = srcs + [_RUNNER],
        args = ["$(rootpath {})".format(src) for src in srcs] + args,
        # No __init__.py where we wrote none: one in the repository's own
        # folder would hide a package of the same name from its users.
        legacy_create_init = 0,
        main = _RUNNER,
        tags = tags,
        deps = deps + ["//testing:runner"],
        **kwargs
    )

def pool_test(name, args = [], tags = [], env = {}, **kwargs):
    """A pytest_test on the kernels, once for each chip of a TPU pool.

    Makes `<name>_tpu_v6e`, `<name>_tpu7x` and so on, which only
    `--config=tpu_pool` runs: on a worker whose property `Pool` is `tpu_v6e`,
    `tpu7x` and so on. They fail where no such chip is attached.

    Args:
      name: stem of the targets' names.
      args: as in `pytest_test`.
      tags: for every target, besides the pool's own.
      env: more of the tests' environment.
      **kwargs: as in `pytest_test`.
    """
    for chip, pool in _POOLS.items():
        pytest_test(
            name = "{}_{}".format(name, pool),
            args = ["--backend=pallas"] + args,
            env = dict(env, GMM_EXPECT_CHIP = chip),
            exec_properties = {"Pool": pool},
            tags = tags + ["pallas", "tpu_pool", pool],
            **kwargs
        )

def kernel_test(
        name,
        srcs,
        deps = [],
        backends = ["interpret", "xla", "pallas"],
        args = [],
        size = None,
        tags = [],
        shard_count = None,
        workers = 0,
        **kwargs):
    """One test source, run on each backend.

    Makes `<name>_interpret` and `<name>_xla`, which run anywhere, and for
    "pallas" `<name>_tpu`, on the TPU of this machine, and the targets of
    `pool_test`. Those fail where no TPU is attached. The tests take the fixture
    `backend`.

    Args:
      name: stem of the targets' names.
      srcs: as in `pytest_test`.
      deps: as in `pytest_test`.
      backends: some of "interpret", "xla", "pallas".
      args: as in `pytest_test`.
      size: Bazel's, of the targets on a CPU.
      tags: for every target, besides the backend's own.
      shard_count: of the targets on a CPU and in a pool; one machine's TPU
        holds one process.
      workers: as in `pytest_test`, of the targets on a CPU.
      **kwargs: as in `pytest_test`.
    """
    for backend in backends:
        suffix, own_tags = _BACKENDS[backend]
        on_tpu = backend == "pallas"
        pytest_test(
            name = "{}_{}".format(name, suffix),
            size = "enormous" if on_tpu else size,
            srcs = srcs,
            args = ["--backend=" + backend] + args,
            shard_count = None if on_tpu else shard_count,
            tags = tags + own_tags,
            workers = 0 if on_tpu else workers,
            deps = deps,
            **kwargs
        )

    if "pallas" in backends:
        pool_test(
            name = name,
            size = "enormous",
            srcs = srcs,
            args = args,
            shard_count = shard_count,
            tags = tags,
            deps = deps,
            **kwargs
        )

"""Repositories that Bazel's own tools load, re-exporting the native rules.

The tools inside Bazel 4 ask for these by name and would download them. The
native rules are the same code, so a few lines save the network.
"""

def _reexport(rules, first = ""):
    lines = ['"""Native rules under the name that others load."""', "", first]
    lines += ["{0} = native.{0}".format(rule) for rule in rules]
    return "\n".join(lines) + "\n"

_CC_RULES = [
    "cc_binary",
    "cc_import",
    "cc_library",
    "cc_proto_library",
    "cc_test",
    "cc_toolchain",
    "cc_toolchain_suite",
    "objc_library",
]

_JAVA_RULES = [
    "java_binary",
    "java_import",
    "java_library",
    "java_proto_library",
    "java_runtime",
    "java_test",
    "java_toolchain",
]

_PYTHON_RULES = [
    "py_binary",
    "py_library",
    "py_runtime",
    "py_test",
]

# No native rule, but Bazel has it all the same. A file cannot export what it
# loads, unless it gives that a name of its own.
_LOAD_PAIR = """\
load("@bazel_tools//tools/python:toolchain.bzl", _pair = "py_runtime_pair")

py_runtime_pair = _pair
"""

_PROTO_DEFS = """\
\"\"\"Native rules under the name that others load.\"\"\"

load(":native.bzl", "NativeProtoInfo")

ProtoInfo = NativeProtoInfo
proto_lang_toolchain = native.proto_lang_toolchain
proto_library = native.proto_library
"""

# A file cannot export a global under the global's own name, hence two files.
_PROTO_NATIVE = """\
\"\"\"The native provider under another name, for defs.bzl.\"\"\"

NativeProtoInfo = ProtoInfo
"""

_COVERAGE_BUILD = """\
filegroup(
    name = "coverage_report_generator",
    srcs = [],
    visibility = ["//visibility:public"],
)
"""

# Repository -> file -> its text. An empty BUILD makes the folder a package.
SHIMS = {
    "remote_coverage_tools": {"BUILD": _COVERAGE_BUILD},
    "rules_cc": {
        "cc/BUILD": "",
        "cc/defs.bzl": _reexport(_CC_RULES),
    },
    "rules_java": {
        "java/BUILD": "",
        "java/defs.bzl": _reexport(_JAVA_RULES),
    },
    "rules_proto": {
        "proto/BUILD": "",
        "proto/defs.bzl": _PROTO_DEFS,
        "proto/native.bzl": _PROTO_NATIVE,
    },
    "rules_python": {
        "python/BUILD": "",
        "python/defs.bzl": _reexport(_PYTHON_RULES, _LOAD_PAIR),
    },
}

def _shim_repository_impl(rctx):
    for path, text in SHIMS[rctx.name].items():
        rctx.file(path, text, executable = False)

shim_repository = repository_rule(
    implementation = _shim_repository_impl,
    doc = "Writes the repository of `SHIMS` that has this rule's name.",
)

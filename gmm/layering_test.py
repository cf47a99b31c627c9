"""Who knows what: kernels no meshes, and only the operations have a VJP."""

import ast
import pathlib

import pytest

_GMM = pathlib.Path(__file__).absolute().parent
_KERNELS = sorted(
  p for p in (_GMM / "kernels").glob("*.py") if not p.name.endswith("_test.py")
)
_OPERATIONS = {f"gmm.{n}" for n in ("aot", "gated", "ops", "split", "vjp")}
_OPS = ("gated.py", "split.py", "vjp.py")
# A mask with the gradient that the originals of the adapters hand on.
_MASK = "compat/rows.py"
_MESHES = {
  "Mesh",
  "NamedSharding",
  "PartitionSpec",
  "shard_map",
  "axis_index",
  "axis_size",
  "psum",
  "psum_scatter",
  "all_gather",
  "all_to_all",
  "ppermute",
  "make_mesh",
}


def names(path):
  """All names and attributes in a source, imported ones too."""
  found = set()
  for node in ast.walk(ast.parse(path.read_text())):
    if isinstance(node, ast.Name):
      found.add(node.id)
    elif isinstance(node, ast.Attribute):
      found.add(node.attr)
    elif isinstance(node, ast.alias):
      found.add(node.name.rpartition(".")[2])
  return found


def imports(path):
  """Modules of gmm that a source imports, anywhere in it."""
  found = set()
  for node in ast.walk(ast.parse(path.read_text())):
    if isinstance(node, ast.Import):
      found |= {alias.name for alias in node.names}
    elif isinstance(node, ast.ImportFrom):
      found |= {f"{node.module}.{alias.name}" for alias in node.names}
      found.add(node.module)
  return {name for name in found if name.partition(".")[0] == "gmm"}


def ids(paths):
  return [p.name for p in paths]


@pytest.mark.parametrize("path", _KERNELS, ids=ids(_KERNELS))
def test_kernels_know_nothing_of_meshes(path):
  assert not names(path) & _MESHES
  above = ("aot", "dispatch", "gated", "meshes", "ops", "split", "vjp")
  assert not imports(path) & {f"gmm.{name}" for name in above}


def test_only_operations_have_a_vjp():
  sources = [p for p in _GMM.rglob("*.py") if not p.name.endswith("_test.py")]
  having = {
    p.relative_to(_GMM).as_posix()
    for p in sources
    if names(p) & {"custom_vjp", "defvjp", "custom_gradient"}
  }
  assert len(sources) > len(_OPS)
  assert having == {*_OPS, _MASK}


def test_nothing_below_imports_the_operations():
  for name in ("dispatch", "meshes", "varying", "xla_backend", "xla_gated"):
    found = imports(_GMM / f"{name}.py")
    assert not found & _OPERATIONS, name
